package main

// The scenarios, by the names and meanings of ../README.md.

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/nacos-group/nacos-sdk-go/v2/model"
	"github.com/nacos-group/nacos-sdk-go/v2/vo"
)

var scenarios = []scenario{
	{name: "register", run: registering},
	{name: "select_healthy", run: selectHealthy},
	{name: "weight", run: weight},
	{name: "subscribe", run: subscribing},
	{name: "unsubscribe", run: unsubscribing},
	{name: "deregister", run: deregistering},
	{name: "batch", run: batching},
	{name: "batch_replacement", run: batchReplacement},
	{name: "group", run: group},
	{name: "cluster", run: cluster},
	{name: "namespace", run: namespace},
	{name: "metadata", run: metadata},
	{name: "dubbo_names", run: dubboNames},
	{name: "service_pages", run: servicePages},
	{name: "hundred_instances", run: hundredInstances},
	{name: "abrupt_death", run: abruptDeath},
	{name: "no_beat_expiry", without: "its connection is its beat"},
	{name: "redo", run: redo},
	{name: "udp_push", without: "it is pushed to on its connection"},
	{name: "two_publishers", run: twoPublishers},
}

func registering() {
	s := named("go-register")
	r := s.row("10.5.0.1")
	r.Port, r.Weight, r.Metadata = 8081, 2.5, map[string]string{"zone": "a"}
	// Without a cluster the client sends an empty one, and the instance id has it as it was sent.
	r.ClusterName = "DEFAULT"
	register(at(0), r)
	wanted := list{{
		InstanceId: "10.5.0.1#8081#DEFAULT#DEFAULT_GROUP@@go-register",
		Ip:         "10.5.0.1", Port: 8081, Weight: 2.5, Healthy: true, Enable: true, Ephemeral: true,
		ClusterName: "DEFAULT", ServiceName: "DEFAULT_GROUP@@go-register", Metadata: map[string]string{"zone": "a"},
		InstanceHeartBeatInterval: 5000, InstanceHeartBeatTimeOut: 15000, IpDeleteTimeout: 30000,
	}}
	everywhere(soon, s, "has all its fields", func(now list) bool { return reflect.DeepEqual(now, wanted) })
}

func selectHealthy() {
	s := named("go-select")
	unhealthy, disabled := s.row("10.5.1.2"), s.row("10.5.1.3")
	unhealthy.Healthy, disabled.Enable = false, false
	register(at(0), s.row("10.5.1.1"))
	register(at(1), unhealthy)
	register(at(2), disabled)
	listed(s, "10.5.1.1:8080", "10.5.1.2:8080")

	consumer := at(1)
	question := vo.SelectInstancesParam{ServiceName: s.name, HealthyOnly: true}
	healthy, err := consumer.SelectInstances(question)
	must(err, "selecting the healthy")
	check(are("10.5.1.1:8080")(healthy), "the healthy are %+v", healthy)
	question.HealthyOnly = false
	others, err := consumer.SelectInstances(question)
	must(err, "selecting the unhealthy")
	check(are("10.5.1.2:8080")(others), "the unhealthy are %+v", others)
	one, err := consumer.SelectOneHealthyInstance(vo.SelectOneHealthInstanceParam{ServiceName: s.name})
	must(err, "selecting one")
	check(one.Ip == "10.5.1.1", "selected %+v", one)
}

func weight() {
	s := named("go-weight")
	consumer := subscribe(at(1), s)
	given := map[string]float64{"10.5.2.1": 0, "10.5.2.2": 0.25, "10.5.2.3": 99.5}
	providers := map[string]client{}
	give := func(ip string) {
		r := s.row(ip)
		r.Weight = given[ip]
		register(providers[ip], r)
	}
	asGiven := func(now list) bool {
		found := map[string]float64{}
		for _, i := range now {
			found[i.Ip] = i.Weight
		}
		return reflect.DeepEqual(found, given)
	}
	for ip := range given {
		providers[ip] = at(len(providers))
		give(ip)
	}
	everywhere(soon, s, "has the weights", asGiven)
	consumer.until("every weight", soon, asGiven)

	given["10.5.2.1"], given["10.5.2.3"] = 7, 0
	give("10.5.2.1")
	give("10.5.2.3")
	everywhere(soon, s, "has the new weights", asGiven)
	consumer.until("every new weight", soon, asGiven)
}

func subscribing() {
	s := named("go-subscribe")
	first, second := at(0), at(2)
	one, two := s.row("10.5.3.1"), s.row("10.5.3.2")
	consumer := subscribe(at(1), s)
	register(first, one)
	consumer.until("the instance", soon, are("10.5.3.1:8080"))
	one.Weight, one.Metadata = 3, map[string]string{"version": "2"}
	register(first, one)
	consumer.until("the change", soon, func(now list) bool {
		return len(now) == 1 && now[0].Weight == 3 && now[0].Metadata["version"] == "2"
	})
	register(second, two)
	consumer.until("the second", soon, are("10.5.3.1:8080", "10.5.3.2:8080"))
	deregister(first, one)
	consumer.until("the removal", soon, are("10.5.3.2:8080"))
	deregister(second, two)
	consumer.until("the last removal", soon, are())
}

func unsubscribing() {
	s := named("go-unsubscribe")
	provider, client := at(0), at(1)
	r := s.row("10.5.4.1")
	consumer, witness := subscribe(client, s), subscribe(at(1), s)
	register(provider, r)
	consumer.until("the instance", soon, are("10.5.4.1:8080"))
	consumer.unsubscribe()
	calls := len(consumer.all())
	deregister(provider, r)
	witness.until("the removal to another", soon, are())

	again := subscribe(client, s)
	register(provider, r)
	again.until("the instance, to the new subscription", soon, are("10.5.4.1:8080"))
	check(len(consumer.all()) == calls, "notified after unsubscribing: %+v", consumer.last())
}

func deregistering() {
	s := named("go-deregister")
	provider, r := at(0), s.row("10.5.5.1")
	consumers := []*seen{subscribe(at(0), s), subscribe(at(1), s), subscribe(at(2), s)}
	register(provider, r)
	listed(s, "10.5.5.1:8080")
	for _, consumer := range consumers {
		consumer.until("the instance", soon, are("10.5.5.1:8080"))
	}
	deregister(provider, r)
	for _, consumer := range consumers {
		consumer.until("the removal", soon, are())
	}
	listed(s)
}

func batching() {
	s := named("go-batch")
	consumer := subscribe(at(1), s)
	one, two, three := s.row("10.5.6.1"), s.row("10.5.6.1"), s.row("10.5.6.2")
	one.Port, two.Port, two.Weight, three.Port = 1, 2, 5, 3
	batch(at(0), one, two, three)
	listed(s, "10.5.6.1:1", "10.5.6.1:2", "10.5.6.2:3")
	consumer.until("the batch", soon, are("10.5.6.1:1", "10.5.6.1:2", "10.5.6.2:3"))
	for _, i := range consumer.last() {
		check(i.Weight == 5 == (i.Port == 2), "the weights are not those given: %+v", i)
	}
}

func batchReplacement() {
	s := named("go-batch-replacement")
	provider, consumer := at(0), subscribe(at(1), s)
	dropped, kept, added := s.row("10.5.7.1"), s.row("10.5.7.2"), s.row("10.5.7.3")
	batch(provider, dropped, kept)
	listed(s, "10.5.7.1:8080", "10.5.7.2:8080")
	batch(provider, kept, added)
	listed(s, "10.5.7.2:8080", "10.5.7.3:8080")
	consumer.until("the second batch", soon, are("10.5.7.2:8080", "10.5.7.3:8080"))
	deregister(provider, kept)
	listed(s, "10.5.7.3:8080")
	consumer.until("the removal of one", soon, are("10.5.7.3:8080"))
}

func group() {
	s := named("go-group")
	names := []string{"blue", "green", "G_1-a.b:c"}
	for i, name := range names {
		register(at(i), s.ofGroup(name).row(fmt.Sprintf("10.5.8.%d", i)))
	}
	for i, name := range names {
		ours := s.ofGroup(name)
		listed(ours, fmt.Sprintf("10.5.8.%d:8080", i))
		subscribe(at(1), ours).until("the instance of "+name, soon, are(fmt.Sprintf("10.5.8.%d:8080", i)))
	}
	listed(s)
}

func cluster() {
	s := named("go-cluster")
	consumer := at(1)
	both := subscribe(consumer, s.in("east", "west"))
	east := subscribe(consumer, s.in("east"))
	all := subscribe(consumer, s)
	for node, name := range []string{"east", "west"} {
		r := s.row(fmt.Sprintf("10.5.9.%d", node))
		r.ClusterName = name
		register(at(node), r)
	}
	listed(s, "10.5.9.0:8080", "10.5.9.1:8080")
	listed(s.in("east", "west"), "10.5.9.0:8080", "10.5.9.1:8080")
	listed(s.in("west"), "10.5.9.1:8080")
	listed(s.in("north"))
	both.until("the instance of each", soon, are("10.5.9.0:8080", "10.5.9.1:8080"))
	east.until("the instance in the east", soon, are("10.5.9.0:8080"))
	all.until("every instance", soon, are("10.5.9.0:8080", "10.5.9.1:8080"))
}

func namespace() {
	public, own := named("go-namespace"), named("go-namespace").ofNamespace("go-space")
	provider, r := connect(own.namespace, servers[0]), own.row("10.5.10.2")
	consumer := subscribe(connect(own.namespace, servers[1]), own)
	publicConsumer := subscribe(at(1), public)
	register(provider, r)
	register(at(0), public.row("10.5.10.1"))
	listed(own, "10.5.10.2:8080")
	listed(public, "10.5.10.1:8080")
	consumer.until("the instance there", soon, are("10.5.10.2:8080"))
	publicConsumer.until("the public instance", soon, are("10.5.10.1:8080"))
	deregister(provider, r)
	consumer.until("the removal there", soon, are())
	listed(own)
	listed(public, "10.5.10.1:8080")
	check(are("10.5.10.1:8080")(publicConsumer.last()), "the public list is %+v", publicConsumer.last())
}

func metadata() {
	s := named("go-metadata")
	r := s.row("10.5.11.1")
	r.Metadata = map[string]string{
		"名字":         "服务 \U0001F980",
		`quote"d`:    `back\slash, 'single' and "double"`,
		"json":       `{"list": [1, "two", null]}`,
		"lines":      "a\nb\r\nc\td",
		"separators": "a=b&c=d;e,f%20g#h@@i|j:k/l?m",
		"empty":      "",
	}
	asGiven := func(now list) bool { return len(now) == 1 && reflect.DeepEqual(now[0].Metadata, r.Metadata) }
	consumer := subscribe(at(1), s)
	register(at(0), r)
	everywhere(soon, s, "has the metadata", asGiven)
	consumer.until("the metadata", soon, asGiven)
}

func dubboNames() {
	plain, grouped := "providers:com.example.go.Api:1.0.0:", "providers:com.example.go.Api:1.0.0:group"
	all := []service{named(plain).ofGroup("DUBBO_GROUP"), named(grouped).ofGroup("DUBBO_GROUP"), named(plain), named(grouped)}
	for i, s := range all {
		register(at(0), s.row(fmt.Sprintf("10.5.12.%d", i)))
	}
	for i, s := range all {
		listed(s, fmt.Sprintf("10.5.12.%d:8080", i))
		subscribe(at(1), s).until("the instance of "+s.name, soon, are(fmt.Sprintf("10.5.12.%d:8080", i)))
	}
}

func servicePages() {
	const group = "go-pages"
	provider := at(0)
	wanted := map[string]bool{}
	for i := 0; i < 7; i++ {
		s := named(fmt.Sprintf("go-page-%d", i)).ofGroup(group)
		register(provider, s.row("10.5.13.1"))
		wanted[s.name] = true
	}
	for node := range servers {
		consumer := at(node)
		until(fmt.Sprintf("node %d lists all seven in pages", node), soon, func() error {
			sizes, found := []int{}, map[string]bool{}
			for number := uint32(1); number <= 4; number++ {
				page, err := consumer.GetAllServicesInfo(
					vo.GetAllServiceInfoParam{GroupName: group, PageNo: number, PageSize: 3},
				)
				if err != nil {
					return err
				}
				if page.Count != 7 {
					return fmt.Errorf("the count is %d", page.Count)
				}
				sizes = append(sizes, len(page.Doms))
				for _, name := range page.Doms {
					found[name] = true
				}
			}
			if !reflect.DeepEqual(sizes, []int{3, 3, 1, 0}) || !reflect.DeepEqual(found, wanted) {
				return fmt.Errorf("pages of %v with %v", sizes, found)
			}
			return nil
		})
	}
}

func hundredInstances() {
	s := named("go-hundred")
	consumer := subscribe(at(1), s)
	var providers []client
	var wanted list
	for i := 0; i < 4; i++ {
		provider := at(i % len(servers))
		var rows []row
		for j := 0; j < 25; j++ {
			r := s.row(fmt.Sprintf("10.5.%d.%d", 100+i, j))
			rows = append(rows, r)
			wanted = append(wanted, model.Instance{Ip: r.Ip, Port: r.Port})
		}
		batch(provider, rows...)
		providers = append(providers, provider)
	}
	listed(s, wanted.addresses()...)
	consumer.until("every instance", soon, are(wanted.addresses()...))
	for _, provider := range providers {
		provider.CloseClient()
	}
	listed(s)
	consumer.until("every removal", soon, are())
}

// heldIP is the address that a process started by startHolder registers.
const heldIP = "10.5.14.1"

// startHolder starts a process which has these services registered when this returns.
func startHolder(names ...string) *exec.Cmd {
	child := exec.Command(os.Args[0], append([]string{"--hold", servers[0], scratch}, names...)...)
	child.Stderr = os.Stderr
	_, err := child.StdinPipe() // closed, and thereby its end, when this process ends
	must(err, "a pipe to the holder")
	output, err := child.StdoutPipe()
	must(err, "a pipe from the holder")
	must(child.Start(), "starting the holder")
	line, err := bufio.NewReader(output).ReadString('\n')
	must(err, "reading from the holder")
	check(strings.TrimSpace(line) == holding, "the holder said %q", line)
	return child
}

func abruptDeath() {
	one, two := named("go-death"), named("go-death-too")
	consumers := []*seen{subscribe(at(0), one), subscribe(at(1), one), subscribe(at(2), two)}
	holder := startHolder(one.name, two.name)
	for _, consumer := range consumers {
		consumer.until("the instance", soon, are(heldIP+":8080"))
	}
	must(holder.Process.Kill(), "killing the holder")
	_ = holder.Wait()
	for _, consumer := range consumers {
		consumer.until("the death", soon, are())
	}
	listed(one)
	listed(two)
}

// A watch reads a service at every node until it is stopped, and notes each list that lacks an address.
type watch struct {
	stopped chan struct{}
	ended   sync.WaitGroup
	mutex   sync.Mutex
	reads   int
	lacking []string
}

func startWatch(s service, address string) *watch {
	w := &watch{stopped: make(chan struct{})}
	for node := range servers {
		reader := readerAt(node, s.namespace)
		w.ended.Add(1)
		go func(node int) {
			defer w.ended.Done()
			for {
				select {
				case <-w.stopped:
					return
				case <-time.After(50 * time.Millisecond):
				}
				if now, err := reader.list(s); err == nil { // a node that is dead has no list
					w.note(node, now, address)
				}
			}
		}(node)
	}
	return w
}

func (w *watch) note(node int, now list, address string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.reads++
	for _, found := range now.addresses() {
		if found == address {
			return
		}
	}
	w.lacking = append(w.lacking, fmt.Sprintf("%s: node %d lists %v", time.Now().Format(time.StampMilli), node, now.addresses()))
}

// stop ends the watch and fails if a list lacked the address.
func (w *watch) stop() {
	close(w.stopped)
	w.ended.Wait()
	check(w.reads > 100, "only %d lists were read", w.reads)
	if len(w.lacking) > 0 {
		fail("%d of %d lists lack it, the first at %s", len(w.lacking), w.reads, w.lacking[0])
	}
}

func redo() {
	const address, lateAddress = "10.5.15.1:8080", "10.5.15.2:8080"
	s := named("go-redo")
	// Provider and consumer in one, so that both lose the same node.
	moving := anywhere()
	r := s.row("10.5.15.1")
	consumer := subscribe(moving, s)
	register(moving, r)
	consumer.until("the instance", soon, are(address))
	listed(s, address)

	watch := startWatch(s, address)
	ask("kill the publisher of DEFAULT_GROUP@@go-redo")
	killed := time.Now()
	other := anywhere()
	late := subscribe(other, s)
	register(other, s.row("10.5.15.2"))
	consumer.until("a change after the death of the node", reconnected, are(address, lateAddress))
	// Longer than a row is kept whose node is gone (`orphan_gone`): what is listed then has been registered again.
	time.Sleep(time.Until(killed.Add(20 * time.Second)))
	ask("start it again")
	everywhere(reconnected, s, "has both", are(address, lateAddress))
	watch.stop()
	for _, told := range append(consumer.all()[1:], late.all()...) {
		check(strings.Contains(strings.Join(told.addresses(), " "), address), "notified without it: %+v", told)
	}

	deregister(moving, r)
	consumer.until("the removal", soon, are(lateAddress))
	late.until("the removal to another", soon, are(lateAddress))
	listed(s, lateAddress)
}

// twoPublishers: a client that goes takes a mark along, which tells when every node has seen it go.
func twoPublishers() {
	s, mark := named("go-two"), named("go-two-mark")
	first, second := at(0), at(2)
	consumer := subscribe(at(1), s)
	r := s.row("10.5.16.1")
	register(first, mark.row("10.5.16.9"))
	register(first, r)
	register(second, r)
	listed(s, "10.5.16.1:8080")
	listed(mark, "10.5.16.9:8080")
	consumer.until("the instance", soon, are("10.5.16.1:8080"))
	told := len(consumer.all())
	first.CloseClient()
	listed(mark)
	listed(s, "10.5.16.1:8080")
	for _, now := range consumer.all()[told:] {
		check(are("10.5.16.1:8080")(now), "notified of %+v while one of two publishers is left", now)
	}
	second.CloseClient()
	listed(s)
	consumer.until("the end of both", soon, are())

	first, second = at(0), at(2)
	one, two := s.row("10.5.16.2"), s.row("10.5.16.3")
	register(first, one)
	register(second, two)
	listed(s, "10.5.16.2:8080", "10.5.16.3:8080")
	deregister(first, one)
	listed(s, "10.5.16.3:8080")
	consumer.until("the removal of one row", soon, are("10.5.16.3:8080"))
	deregister(second, two)
	listed(s)
	consumer.until("the removal of the other row", soon, are())
}

package main

// The client's calls in the form that scenarios need.

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nacos-group/nacos-sdk-go/v2/clients"
	"github.com/nacos-group/nacos-sdk-go/v2/clients/naming_client"
	"github.com/nacos-group/nacos-sdk-go/v2/common/constant"
	"github.com/nacos-group/nacos-sdk-go/v2/model"
	"github.com/nacos-group/nacos-sdk-go/v2/vo"
)

type (
	client = naming_client.INamingClient
	row    = vo.RegisterInstanceParam
)

const defaultGroup = "DEFAULT_GROUP"

var (
	servers []string
	scratch string
	made    int
)

// connect makes a client of some nodes, with a cache of its own.
func connect(namespace string, addresses ...string) client {
	made++
	dir := filepath.Join(scratch, fmt.Sprintf("go-%d-%d", os.Getpid(), made))
	config := constant.NewClientConfig(
		constant.WithNamespaceId(namespace),
		constant.WithTimeoutMs(5000),
		constant.WithNotLoadCacheAtStart(true),
		// The default ignores a push of an empty list.
		constant.WithUpdateCacheWhenEmpty(true),
		constant.WithCacheDir(filepath.Join(dir, "cache")),
		constant.WithLogDir(filepath.Join(dir, "log")),
		constant.WithLogLevel("warn"),
	)
	nodes := make([]constant.ServerConfig, 0, len(addresses))
	for _, address := range addresses {
		host, port, err := net.SplitHostPort(address)
		must(err, "the address of a node")
		number, err := strconv.ParseUint(port, 10, 16)
		must(err, "the port of a node")
		nodes = append(nodes, *constant.NewServerConfig(host, number))
	}
	made, err := clients.NewNamingClient(vo.NacosClientParam{ClientConfig: config, ServerConfigs: nodes})
	must(err, "making a client")
	return made
}

// at makes a client that stays at one node.
func at(node int) client { return connect("", servers[node]) }

// anywhere makes a client that begins at any node and goes on to another when it has to.
func anywhere() client { return connect("", servers...) }

// A service is what is asked for: some instances of one namespace.
type service struct {
	namespace, group, name string
	clusters               []string
}

func named(name string) service { return service{group: defaultGroup, name: name} }

func (s service) in(clusters ...string) service {
	s.clusters = clusters
	return s
}

func (s service) ofGroup(group string) service {
	s.group = group
	return s
}

func (s service) ofNamespace(namespace string) service {
	s.namespace = namespace
	return s
}

// row is an instance of this service with the usual fields.
func (s service) row(ip string) row {
	return row{
		ServiceName: s.name, GroupName: s.group, Ip: ip, Port: 8080,
		Weight: 1, Enable: true, Healthy: true, Ephemeral: true,
	}
}

func register(c client, r row) {
	good, err := c.RegisterInstance(r)
	must(err, "registering")
	check(good, "registering answered no")
}

func deregister(c client, r row) {
	good, err := c.DeregisterInstance(vo.DeregisterInstanceParam{
		ServiceName: r.ServiceName, GroupName: r.GroupName, Ip: r.Ip, Port: r.Port, Cluster: r.ClusterName, Ephemeral: true,
	})
	must(err, "deregistering")
	check(good, "deregistering answered no")
}

func batch(c client, rows ...row) {
	request := vo.BatchRegisterInstanceParam{
		ServiceName: rows[0].ServiceName, GroupName: rows[0].GroupName, Instances: rows,
	}
	good, err := c.BatchRegisterInstance(request)
	must(err, "registering a batch")
	check(good, "registering a batch answered no")
}

// === Lists ===

type list []model.Instance

func (l list) addresses() []string {
	found := make([]string, 0, len(l))
	for _, i := range l {
		found = append(found, fmt.Sprintf("%s:%d", i.Ip, i.Port))
	}
	sort.Strings(found)
	return found
}

// are tells whether these are the addresses of the list, in order.
func are(wanted ...string) func(list) bool {
	return func(now list) bool { return reflect.DeepEqual(now.addresses(), append([]string{}, wanted...)) }
}

// A reader asks one node. The client answers from its cache what it has subscribed, so that each question is a
// subscription that ends at once.
type reader struct {
	client client
	mutex  sync.Mutex
}

func (r *reader) list(s service) (list, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	question := &vo.SubscribeParam{
		ServiceName: s.name, GroupName: s.group, Clusters: s.clusters,
		SubscribeCallback: func([]model.Instance, error) {},
	}
	err := r.client.Subscribe(question)
	var now list
	if err == nil {
		now, err = r.client.SelectAllInstances(
			vo.SelectAllInstancesParam{ServiceName: s.name, GroupName: s.group, Clusters: s.clusters},
		)
	}
	if ended := r.client.Unsubscribe(question); err == nil {
		err = ended
	}
	return now, err
}

var readers = map[string]*reader{}

func readerAt(node int, namespace string) *reader {
	key := namespace + "@" + servers[node]
	if readers[key] == nil {
		readers[key] = &reader{client: connect(namespace, servers[node])}
	}
	return readers[key]
}

// everywhere waits until every node lists what is wanted.
func everywhere(within time.Duration, s service, what string, wanted func(list) bool) {
	for node := range servers {
		reader := readerAt(node, s.namespace)
		until(fmt.Sprintf("%s %s at node %d", s.name, what, node), within, func() error {
			now, err := reader.list(s)
			if err == nil && !wanted(now) {
				err = fmt.Errorf("it lists %+v", now)
			}
			return err
		})
	}
}

// listed waits until every node lists exactly these addresses, given in order.
func listed(s service, wanted ...string) {
	everywhere(soon, s, "is ["+strings.Join(wanted, " ")+"]", are(wanted...))
}

// === Subscriptions ===

// seen is what a subscriber's callback was told.
type seen struct {
	client client
	param  *vo.SubscribeParam
	mutex  sync.Mutex
	lists  []list
}

func subscribe(c client, s service) *seen {
	told := &seen{client: c}
	told.param = &vo.SubscribeParam{
		ServiceName: s.name, GroupName: s.group, Clusters: s.clusters,
		SubscribeCallback: func(now []model.Instance, err error) {
			told.mutex.Lock()
			defer told.mutex.Unlock()
			if err == nil {
				told.lists = append(told.lists, append(list{}, now...))
			}
		},
	}
	must(c.Subscribe(told.param), "subscribing")
	return told
}

func (s *seen) unsubscribe() { must(s.client.Unsubscribe(s.param), "unsubscribing") }

// all gives every list in the order of the calls.
func (s *seen) all() []list {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return append([]list{}, s.lists...)
}

// last is the newest list; empty before the first call.
func (s *seen) last() list {
	all := s.all()
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1]
}

// until waits until the newest list is as wanted.
func (s *seen) until(what string, within time.Duration, wanted func(list) bool) {
	until(what+" is notified", within, func() error {
		if now := s.last(); !wanted(now) {
			return fmt.Errorf("the last of %d lists is %+v", len(s.all()), now)
		}
		return nil
	})
}

'use strict';
// The scenarios, by the names and meanings of ../README.md.

const assert = require('node:assert/strict');
const { spawn } = require('node:child_process');
const { once } = require('node:events');
const readline = require('node:readline');
const driver = require('./driver');
const { RECONNECTED, SOON, pause, throughout, until } = driver;
const {
  GROUP, Seen, addresses, anywhere, are, at, deregister, everywhere, list, listed, named, nodes, register,
} = require('./naming');

async function registering() {
  const service = named('node-register');
  const given = { weight: 2.5, metadata: { zone: 'a' } };
  await register(await at(0), service, '10.6.0.1', { ...given, port: 8081 });
  await everywhere(service, 'has all its fields', ([one, ...more]) => {
    assert.equal(more.length, 0);
    assert.deepEqual({ ...one, ...given }, one);
    const { ip, port, healthy, enabled, ephemeral, clusterName, serviceName, instanceId } = one;
    assert.deepEqual(
      [ip, port, healthy, enabled, ephemeral, clusterName, serviceName, instanceId],
      ['10.6.0.1', 8081, true, true, true, 'DEFAULT', 'DEFAULT_GROUP@@node-register',
        '10.6.0.1#8081#DEFAULT#DEFAULT_GROUP@@node-register'],
    );
  });
}

// A client's first beat makes its instance healthy, ten seconds after the client was made.
async function selectHealthy() {
  const service = named('node-select');
  const provider = await at(0);
  await register(provider, service, '10.6.1.1');
  await register(provider, service, '10.6.1.2', { healthy: false });
  await register(provider, service, '10.6.1.3', { enabled: false });
  await listed(service, '10.6.1.1:8080', '10.6.1.2:8080');
  const consumer = await at(1);
  are('10.6.1.1:8080')(await consumer.selectInstances(service.name, GROUP, '', true, false));
  are('10.6.1.2:8080')(await consumer.selectInstances(service.name, GROUP, '', false, false));
}

async function weight() {
  const service = named('node-weight');
  const consumer = new Seen(await at(1), service);
  const provider = await at(0);
  // The client takes the number 0 for no weight, which is 1, but not the text.
  const given = { '10.6.2.1': '0', '10.6.2.2': 0.25, '10.6.2.3': 99.5 };
  const give = ip => register(provider, service, ip, { weight: given[ip] });
  const asGiven = now => {
    const found = Object.fromEntries(now.map(one => [one.ip, one.weight]));
    assert.deepEqual(found, Object.fromEntries(Object.entries(given).map(([ip, text]) => [ip, Number(text)])));
  };
  await Promise.all(Object.keys(given).map(give));
  await everywhere(service, 'has the weights', asGiven);
  await consumer.until('every weight', asGiven);
  given['10.6.2.1'] = 7;
  await give('10.6.2.1');
  await everywhere(service, 'has the new weight', asGiven);
  await consumer.until('the new weight', asGiven);
}

// The client ignores an empty list: that the last one is gone shows in what the nodes list.
async function subscribing() {
  const service = named('node-subscribe');
  const [first, second] = [await at(0), await at(2)];
  const consumer = new Seen(await at(1), service);
  await register(first, service, '10.6.3.1');
  await consumer.until('the instance', are('10.6.3.1:8080'));
  await register(first, service, '10.6.3.1', { weight: 3, metadata: { version: '2' } });
  await consumer.until('the change', ([one]) => assert.deepEqual([one.weight, one.metadata], [3, { version: '2' }]));
  await register(second, service, '10.6.3.2');
  await consumer.until('the second', are('10.6.3.1:8080', '10.6.3.2:8080'));
  await deregister(first, service, '10.6.3.1');
  await consumer.until('the removal', are('10.6.3.2:8080'));
  await deregister(second, service, '10.6.3.2');
  await listed(service);
}

async function unsubscribing() {
  const service = named('node-unsubscribe');
  const [provider, client] = [await at(0), await at(1)];
  const consumer = new Seen(client, service);
  const witness = new Seen(await at(1), service);
  await register(provider, service, '10.6.4.1');
  await consumer.until('the instance', are('10.6.4.1:8080'));
  consumer.unsubscribe();
  const calls = consumer.lists.length;
  await register(provider, service, '10.6.4.2');
  await witness.until('the second to another', are('10.6.4.1:8080', '10.6.4.2:8080'));

  const again = new Seen(client, service);
  await again.until('the second, to the new subscription', are('10.6.4.1:8080', '10.6.4.2:8080'));
  await deregister(provider, service, '10.6.4.2');
  await again.until('the removal, to the new subscription', are('10.6.4.1:8080'));
  assert.equal(consumer.lists.length, calls, 'notified after unsubscribing');
}

async function deregistering() {
  const service = named('node-deregister');
  const provider = await at(0);
  const consumers = await Promise.all(nodes().map(async node => new Seen(await at(node), service)));
  await register(provider, service, '10.6.5.1');
  await register(provider, service, '10.6.5.2');
  for (const consumer of consumers) {
    await consumer.until('both', are('10.6.5.1:8080', '10.6.5.2:8080'));
  }
  await deregister(provider, service, '10.6.5.1');
  for (const consumer of consumers) {
    await consumer.until('the removal', are('10.6.5.2:8080'));
  }
  await deregister(provider, service, '10.6.5.2');
  await listed(service);
}

async function group() {
  const groups = ['blue', 'green', 'G_1-a.b:c'].map(name => named('node-group', { group: name }));
  for (const node of nodes()) {
    await register(await at(node), groups[node], `10.6.8.${node}`);
  }
  const consumer = await at(1);
  for (const node of nodes()) {
    await listed(groups[node], `10.6.8.${node}:8080`);
    await new Seen(consumer, groups[node]).until(`that of ${groups[node].group}`, are(`10.6.8.${node}:8080`));
  }
  await listed(named('node-group'));
}

// The client cannot subscribe to every cluster: to name none is to name `DEFAULT`.
async function cluster() {
  const service = named('node-cluster');
  const of = clusters => ({ ...service, clusters });
  const consumer = await at(1);
  const [both, east, none] = ['east,west', 'east', ''].map(clusters => new Seen(consumer, of(clusters)));
  await register(await at(0), service, '10.6.9.1', { clusterName: 'east' });
  await register(await at(1), service, '10.6.9.2', { clusterName: 'west' });
  await register(await at(2), service, '10.6.9.3');
  await listed(service, '10.6.9.1:8080', '10.6.9.2:8080', '10.6.9.3:8080');
  await listed(of('east,west'), '10.6.9.1:8080', '10.6.9.2:8080');
  await listed(of('west'), '10.6.9.2:8080');
  await listed(of('north'));
  await both.until('that of each', are('10.6.9.1:8080', '10.6.9.2:8080'));
  await east.until('that in the east', are('10.6.9.1:8080'));
  await none.until('that of the default cluster', are('10.6.9.3:8080'));
}

async function namespace() {
  const common = named('node-namespace');
  const own = named('node-namespace', { namespace: 'node-space' });
  const provider = await at(0, own.namespace);
  const consumer = new Seen(await at(1, own.namespace), own);
  const commonConsumer = new Seen(await at(1), common);
  await register(await at(0), common, '10.6.10.1');
  await register(provider, own, '10.6.10.2');
  await register(provider, own, '10.6.10.3');
  await listed(own, '10.6.10.2:8080', '10.6.10.3:8080');
  await listed(common, '10.6.10.1:8080');
  await consumer.until('those there', are('10.6.10.2:8080', '10.6.10.3:8080'));
  await commonConsumer.until('the public one', are('10.6.10.1:8080'));
  await deregister(provider, own, '10.6.10.2');
  await consumer.until('the removal there', are('10.6.10.3:8080'));
  await deregister(provider, own, '10.6.10.3');
  await listed(own);
  await listed(common, '10.6.10.1:8080');
}

async function metadata() {
  const service = named('node-metadata');
  const given = {
    '名字': '服务 \u{1F980}',
    'quote"d': 'back\\slash, \'single\' and "double"',
    json: '{"list": [1, "two", null]}',
    lines: 'a\nb\r\nc\td',
    separators: 'a=b&c=d;e,f%20g#h@@i|j:k/l?m',
    empty: '',
  };
  const asGiven = ([one]) => assert.deepEqual(one?.metadata, given);
  const consumer = new Seen(await at(1), service);
  await register(await at(0), service, '10.6.11.1', { metadata: given });
  await everywhere(service, 'has the metadata', asGiven);
  await consumer.until('the metadata', asGiven);
}

async function dubboNames() {
  const names = ['providers:com.example.node.Api:1.0.0:', 'providers:com.example.node.Api:1.0.0:group'];
  const services = names.flatMap(name => [named(name, { group: 'DUBBO_GROUP' }), named(name)]);
  const [provider, consumer] = [await at(0), await at(1)];
  for (const [i, service] of services.entries()) {
    await register(provider, service, `10.6.12.${i}`);
  }
  for (const [i, service] of services.entries()) {
    await listed(service, `10.6.12.${i}:8080`);
    await new Seen(consumer, service).until(`that of ${service.name}`, are(`10.6.12.${i}:8080`));
  }
}

// The client has the request, though not among its public calls.
async function servicePages() {
  const services = Array.from({ length: 7 }, (_, i) => named(`node-page-${i}`, { group: 'node-pages' }));
  const provider = await at(0);
  for (const service of services) {
    await register(provider, service, '10.6.13.1');
  }
  for (const node of nodes()) {
    const consumer = await at(node);
    await until(`node ${node} lists all seven in pages`, SOON, async () => {
      const pages = [];
      for (const number of [1, 2, 3, 4]) {
        pages.push(await consumer._serverProxy.getServiceList(number, 3, 'node-pages'));
      }
      assert.deepEqual(pages.map(page => page.count), [7, 7, 7, 7]);
      assert.deepEqual(pages.map(page => page.data.length), [3, 3, 1, 0]);
      assert.deepEqual(pages.flatMap(page => page.data).sort(), services.map(service => service.name));
    });
  }
}

// Two more stay, so that the last list is not an empty one.
async function hundredInstances() {
  const service = named('node-hundred');
  const consumer = new Seen(await at(1), service);
  const providers = await Promise.all(nodes().map(node => at(node)));
  const rows = Array.from({ length: 100 }, (_, i) => ({ ip: `10.6.14.${i}`, provider: providers[i % providers.length] }));
  const wanted = rows.map(({ ip }) => `${ip}:8080`);
  await register(providers[0], service, '10.6.14.200');
  await Promise.all(rows.map(({ ip, provider }) => register(provider, service, ip)));
  await listed(service, ...wanted, '10.6.14.200:8080');
  await consumer.until('every instance', are(...wanted, '10.6.14.200:8080'));
  await Promise.all(rows.map(({ ip, provider }) => deregister(provider, service, ip)));
  await listed(service, '10.6.14.200:8080');
  await consumer.until('every removal', are('10.6.14.200:8080'));
}

// Times that make an instance beat every second, turn unhealthy without a beat and then go.
const IMPATIENT = {
  'preserved.heart.beat.interval': '1000',
  'preserved.heart.beat.timeout': '4000',
  'preserved.ip.delete.timeout': '8000',
};
const HELD = '10.6.15.1';
const HOLDING = 'holding';

// Registers the services in this process, which ends with whoever started it.
async function hold(names) {
  const provider = await anywhere();
  for (const name of names) {
    await register(provider, named(name), HELD, { metadata: IMPATIENT });
  }
  console.log(HOLDING);
  process.stdin.resume().once('end', () => process.exit());
}

// A process that has these services registered.
async function startHolder(...names) {
  const [main, servers, scratch] = process.argv.slice(1);
  const holder = spawn(process.execPath, [main, '--hold', servers, scratch, ...names], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const [line] = await once(readline.createInterface({ input: holder.stdout }), 'line');
  assert.equal(line, HOLDING);
  return holder;
}

function health(...wanted) {
  return now => assert.deepEqual(now.map(one => `${one.ip} ${one.healthy}`).sort(), wanted);
}

async function abruptDeath() {
  const [one, two] = [named('node-death'), named('node-death-too')];
  await register(await at(0), one, '10.6.15.2');
  const consumers = await Promise.all(nodes().map(async node => new Seen(await at(node), one)));
  const holder = await startHolder(one.name, two.name);
  for (const consumer of consumers) {
    await consumer.until('the instance', health(`${HELD} true`, '10.6.15.2 true'));
  }
  await listed(two, `${HELD}:8080`);
  holder.kill('SIGKILL');
  for (const consumer of consumers) {
    await consumer.until('the death', are('10.6.15.2:8080'));
  }
  await listed(two);
}

// The client first beats ten seconds after it was made. Until then its instance has no beat, and after it was closed.
async function noBeatExpiry() {
  const service = named('node-beats');
  const provider = await at(0);
  await register(provider, service, '10.6.16.1', { metadata: IMPATIENT });
  await listed(service, '10.6.16.1:8080');
  await everywhere(service, 'is unhealthy before the first beat', health('10.6.16.1 false'));
  await everywhere(service, 'is healthy with the first beat', health('10.6.16.1 true'));
  await stays(service, health('10.6.16.1 true'));
  await provider.close();
  await everywhere(service, 'is unhealthy after the last beat', health('10.6.16.1 false'));
  await listed(service);
}

// Longer than an impatient instance stays healthy without a beat.
function stays(service, wanted) {
  return throughout(6, async () => {
    for (const node of nodes()) {
      wanted(await list(node, service));
    }
  });
}

async function redo() {
  const service = named('node-redo');
  const [address, late] = ['10.6.17.1:8080', '10.6.17.2:8080'];
  const provider = await anywhere();
  const consumer = new Seen(await anywhere(), service);
  await register(provider, service, '10.6.17.1');
  await consumer.until('the instance', are(address));
  await listed(service, address);

  let [reads, watching] = [0, true];
  const watch = async node => {
    while (watching) {
      // A node that is dead has no list.
      const now = await list(node, service).catch(() => null);
      if (now) {
        reads += 1;
        assert(now.some(one => `${one.ip}:${one.port}` === address && one.healthy), `node ${node} lists ${addresses(now)}`);
      }
      await pause(0.05);
    }
  };
  const watches = Promise.all(nodes().map(watch));
  watches.catch(() => {}); // it is awaited below

  await driver.ask(`kill the publisher of ${GROUP}@@node-redo`);
  await register(await anywhere(), service, '10.6.17.2');
  await consumer.until('a change after the death of the node', are(address, late), RECONNECTED);
  // Longer than an instance stays healthy without a beat: the other nodes have had some.
  await pause(20);
  await driver.ask('start it again');
  await everywhere(service, 'has both', are(address, late), RECONNECTED);
  watching = false;
  await watches;
  assert(reads > 100, `only ${reads} lists were read`);
  for (const now of consumer.lists) {
    assert(addresses(now).includes(address), `notified of ${addresses(now)}`);
  }
  await deregister(provider, service, '10.6.17.1');
  await consumer.until('the removal', are(late), RECONNECTED);
  await listed(service, late);
}

// A change is here long before the next poll: polls are ten seconds apart but for the first two. The client takes a poll's
// answer also when it is older than what was pushed, so that a list may be told and taken back.
async function udpPush() {
  const service = named('node-udp');
  const provider = await at(0);
  await register(provider, service, '10.6.18.1');
  const consumer = new Seen(await at(1), service);
  await consumer.until('the instance', are('10.6.18.1:8080'));
  for (const weight of [2, 3, 4, 5]) {
    await register(provider, service, '10.6.18.1', { weight });
    await until(`the weight ${weight} is pushed`, 3, async () => {
      const told = consumer.lists.map(([one]) => one.weight);
      assert(told.includes(weight), `told the weights ${told}`);
    });
  }
}

// The clients beat for the same row; it stays as long as one of them does.
async function twoPublishers() {
  const service = named('node-two');
  const [first, second] = [await at(0), await at(2)];
  await register(first, service, '10.6.19.1', { metadata: IMPATIENT });
  await register(second, service, '10.6.19.1', { metadata: IMPATIENT });
  await listed(service, '10.6.19.1:8080');
  await everywhere(service, 'is unhealthy before the first beat', health('10.6.19.1 false'));
  await everywhere(service, 'is healthy with the beats', health('10.6.19.1 true'));
  await first.close();
  await stays(service, health('10.6.19.1 true'));
  await second.close();
  await listed(service);

  const [third, fourth] = [await at(0), await at(2)];
  const consumer = new Seen(await at(1), service);
  await register(third, service, '10.6.19.2');
  await register(fourth, service, '10.6.19.3');
  await listed(service, '10.6.19.2:8080', '10.6.19.3:8080');
  await deregister(third, service, '10.6.19.2');
  await listed(service, '10.6.19.3:8080');
  await consumer.until('the removal of one row', are('10.6.19.3:8080'));
  await deregister(fourth, service, '10.6.19.3');
  await listed(service);
}

const scenarios = {
  register: registering,
  select_healthy: selectHealthy,
  weight,
  subscribe: subscribing,
  unsubscribe: unsubscribing,
  deregister: deregistering,
  batch: 'it has no call for it',
  batch_replacement: 'it has no call for it',
  group,
  cluster,
  namespace,
  metadata,
  dubbo_names: dubboNames,
  service_pages: servicePages,
  hundred_instances: hundredInstances,
  abrupt_death: abruptDeath,
  no_beat_expiry: noBeatExpiry,
  redo,
  udp_push: udpPush,
  two_publishers: twoPublishers,
};

module.exports = { hold, scenarios };

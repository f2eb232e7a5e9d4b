'use strict';
// The client's calls in the form that scenarios need.

const assert = require('node:assert/strict');
const { Console } = require('node:console');
const fs = require('node:fs');
const path = require('node:path');
const { NacosNamingClient } = require('nacos');
const { SOON, until } = require('./driver');

const GROUP = 'DEFAULT_GROUP';

let servers = [];
let logger = null;
const opened = [];

// Main addresses separated by commas, and a folder for the log.
function begin(addresses, scratch) {
  servers = addresses.split(',');
  const log = fs.createWriteStream(path.join(scratch, `node-${process.pid}.log`));
  logger = new Console(log);
}

function nodes() {
  return servers.map((_, node) => node);
}

async function connect(serverList, namespace = 'public') {
  const client = new NacosNamingClient({ logger, serverList, namespace });
  opened.push(client);
  await client.ready();
  return client;
}

// Closes every client: one that is left would ask and beat, and report each time that its node does not answer.
async function closeAll() {
  await Promise.all(opened.splice(0).map(client => client.close()));
}

// A client of one node.
function at(node, namespace) {
  return connect([servers[node]], namespace);
}

// A client that takes any node for each request, and another one when that fails.
function anywhere() {
  return connect([...servers]);
}

// A service and, where given, its group, namespace, and clusters that are asked for.
function named(name, more = {}) {
  return { name, group: GROUP, namespace: 'public', clusters: '', ...more };
}

async function register(client, service, ip, more = {}) {
  await client.registerInstance(service.name, { ip, port: 8080, ...more }, service.group);
}

async function deregister(client, service, ip, more = {}) {
  await client.deregisterInstance(service.name, { ip, port: 8080, ...more }, service.group);
}

function addresses(list) {
  return list.map(one => `${one.ip}:${one.port}`).sort();
}

// Fails unless these are the addresses of the list.
function are(...wanted) {
  return list => assert.deepEqual(addresses(list), wanted.sort());
}

// The list as a node has it now. By a client of its own, since one that knows a service takes an empty answer for none.
async function list(node, { name, group, namespace, clusters }) {
  const client = await at(node, namespace);
  try {
    return await client.getAllInstances(name, group, clusters, false);
  } finally {
    opened.splice(opened.indexOf(client), 1);
    await client.close();
  }
}

// Waits until `wanted` accepts the list of every node.
async function everywhere(service, what, wanted, within = SOON) {
  for (const node of nodes()) {
    await until(`${service.name} ${what} at node ${node}`, within, async () => wanted(await list(node, service)));
  }
}

// Waits until every node lists exactly these addresses.
function listed(service, ...wanted) {
  return everywhere(service, `is [${wanted}]`, are(...wanted));
}

// What a subscriber's callback was told.
class Seen {
  constructor(client, { name, group, clusters }) {
    this.client = client;
    this.info = { serviceName: name, groupName: group, clusters };
    this.lists = [];
    this.listener = list => this.lists.push(list);
    client.subscribe(this.info, this.listener);
  }

  get last() {
    return this.lists.at(-1) ?? [];
  }

  // Waits until `wanted` accepts the newest list.
  until(what, wanted, within = SOON) {
    return until(`${what} is notified`, within, async () => wanted(this.last));
  }

  unsubscribe() {
    this.client.unSubscribe(this.info, this.listener);
  }
}

module.exports = {
  GROUP, Seen, addresses, anywhere, are, at, begin, closeAll, deregister, everywhere, list, listed, named, nodes, register,
};

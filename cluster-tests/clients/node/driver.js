'use strict';
// What the scenarios share: the lines spoken with whoever started the program, checks, and waiting.

const assert = require('node:assert/strict');
const readline = require('node:readline');
const { setTimeout: sleep } = require('node:timers/promises');

// Seconds in which a change must reach every client: a poll of this client and a little more.
const SOON = 15;
// Seconds in which a client must have found another node.
const RECONNECTED = 40;
// Seconds of a whole scenario.
const PATIENCE = 120;

function say(line) {
  process.stdout.write(line.replaceAll('\n', ' ') + '\n');
}

const answers = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

// Asks for something to be done to the cluster and waits until it is.
async function ask(what) {
  say(`? ${what}`);
  const { value } = await answers.next();
  assert.equal(value, 'done', `asked to ${what}`);
}

function pause(seconds) {
  return sleep(seconds * 1000);
}

// Repeats `attempt` until it throws nothing; gives what it gave.
async function until(what, within, attempt) {
  const deadline = Date.now() + within * 1000;
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      if (Date.now() > deadline) {
        throw new Error(`not within ${within} s: ${what}: ${error.message}`);
      }
    }
    await pause(0.05);
  }
}

// Repeats `attempt` for this time; what it throws ends it.
async function throughout(seconds, attempt) {
  const end = Date.now() + seconds * 1000;
  while (Date.now() < end) {
    await attempt();
    await pause(0.05);
  }
}

// Runs the scenarios one after another, and `after` after each; gives the exit code. One that is a text says why this
// client is without it.
async function runAll(scenarios, after) {
  let code = 0;
  for (const [name, scenario] of Object.entries(scenarios)) {
    if (typeof scenario === 'string') {
      say(`without ${name}: ${scenario}`);
      continue;
    }
    const timer = new AbortController();
    const late = sleep(PATIENCE * 1000, null, { signal: timer.signal }).then(() => {
      throw new Error(`not done within ${PATIENCE} s`);
    });
    try {
      await Promise.race([scenario(), late]);
      say(`ok ${name}`);
    } catch (error) {
      say(`FAILED ${name}: ${error.message}`);
      code = 1;
    }
    late.catch(() => {}); // it is aborted
    timer.abort();
    await after();
  }
  return code;
}

module.exports = { SOON, RECONNECTED, ask, pause, until, throughout, runAll };

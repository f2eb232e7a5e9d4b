'use strict';
// What an application does with the official Node client, which speaks HTTP v1 and is pushed to over UDP, as scenarios.
//
//     main.js SERVERS SCRATCH                    main addresses separated by commas; a folder for logs
//     main.js --hold SERVER SCRATCH SERVICE...   registers each service and keeps it until it is killed

const { runAll } = require('./driver');
const naming = require('./naming');
const { hold, scenarios } = require('./scenarios');

async function main(args) {
  if (args[0] === '--hold') {
    const [servers, scratch, ...names] = args.slice(1);
    naming.begin(servers, scratch);
    await hold(names);
    return;
  }
  if (args.length !== 2) {
    console.error('usage: main.js SERVERS SCRATCH');
    process.exit(2);
  }
  naming.begin(...args);
  process.exit(await runAll(scenarios, naming.closeAll));
}

main(process.argv.slice(2));

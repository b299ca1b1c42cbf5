// Runs Node's lock libraries for the Rust workspace. Implements the line protocol of ../README.md.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import Redis from "ioredis";
import { connect as connectRedlock } from "./redlock.js";
import { connect as connectSemaphore } from "./semaphore.js";
import { drain, hold, run, waiters } from "./bench.js";
import { Busy, FOREVER, OWN_LEASE } from "./library.js";

const libraries = { redlock: connectRedlock, semaphore: connectSemaphore };
const held = new Map();

async function main(name, url) {
  if (!url || !libraries[name]) {
    process.stderr.write("usage: main.js redlock|semaphore URL\n");
    process.exit(2);
  }
  const servers = addresses(url).map((address) => {
    const redis = new Redis(address, { enableAutoPipelining: true, lazyConnect: true });
    return redis.on("error", (error) => process.stderr.write(`${error.message}\n`));
  });
  // What the libraries do not offer goes to the first server.
  const [redis] = servers;
  const library = libraries[name](servers);
  try {
    // Without this, commands would wait for a server that is down.
    await Promise.all(servers.map((server) => server.connect()));
    await warmUp(library);
  } catch (error) {
    process.stderr.write(`cannot acquire a first lock: ${reason(error)}\n`);
    process.exit(1);
  }
  say(
    `ready ${name} ${version(library.module)} | ${library.settings}, ` +
      `servers: ${servers.length}, one connection to each with auto-pipelining, ioredis ${version("ioredis")}`,
  );
  const lines = createInterface({ input: process.stdin });
  lines.on("line", (line) => {
    const words = line.split(/\s+/).filter(Boolean);
    if (words.length > 0) answer(library, redis, words);
  });
  lines.on("close", () => process.exit(0));
}

// A URL may name several independent servers.
function addresses(url) {
  const several = "redis+redlock://";
  return url.startsWith(several) ? url.slice(several.length).split(",").map((host) => `redis://${host}`) : [url];
}

async function warmUp(library) {
  for (let i = 0; i < 1000; i++) {
    const lock = await library.acquire(`warm:${process.pid}`, 1000, OWN_LEASE);
    await lock.release();
  }
}

function version(module) {
  return createRequire(import.meta.url)(`./node_modules/${module}/package.json`).version.replace(/^v/, "");
}

async function answer(library, redis, [id, verb, ...args]) {
  let reply;
  try {
    reply = await does(library, redis, verb, args);
  } catch (error) {
    reply = error instanceof Busy ? "busy" : `error ${reason(error)}`;
  }
  say(`${id} ${reply}`);
}

async function does(library, redis, verb, args) {
  const word = (i) => {
    if (args[i] === undefined) throw new Error("too few arguments");
    return args[i];
  };
  const number = (i) => {
    if (!/^\d+$/.test(word(i))) throw new Error(`${args[i]} is not a number`);
    return Number(args[i]);
  };
  switch (verb) {
    case "acquire":
      held.set(word(0), await library.acquire(word(0), number(1), number(2)));
      return "ok";
    case "renew":
      await recall(word(0)).renew(number(1));
      return "ok";
    case "release": {
      const lock = recall(word(0));
      held.delete(word(0));
      await lock.release();
      return "ok";
    }
    case "force":
      await redis.del(library.name(word(0)));
      return "ok";
    case "held":
      return (await recall(word(0)).held()) ? "ok yes" : "ok no";
    case "owner":
      return (await redis.exists(library.name(word(0)))) ? "ok yes" : "ok no";
    case "count":
      await count(library, redis, word(0), word(1), number(2), number(3));
      return "ok";
    case "crash":
      return process.kill(process.pid, "SIGKILL");
    case "run":
      word(4);
      return `ok ${await run(library, word(0), number(1), number(2), number(3), args.slice(4))}`;
    case "hold":
      await hold(library, number(0), number(1));
      return "ok";
    case "waiters":
      await waiters(library, word(0), number(1));
      return "ok";
    case "drain":
      return `ok ${await drain(word(0))}`;
    default:
      throw new Error(`unknown verb ${verb}`);
  }
}

function recall(key) {
  if (!held.has(key)) throw new Error(`${key} is not held here`);
  return held.get(key);
}

async function count(library, redis, key, counter, workers, times) {
  const worker = async () => {
    for (let round = 0; round < Math.floor(times / workers); round++) {
      const lock = await library.acquire(key, FOREVER, OWN_LEASE);
      const before = Number(await redis.get(counter));
      await redis.set(counter, before + 1);
      await lock.release();
    }
  };
  await Promise.all(Array.from({ length: workers }, worker));
}

function reason(error) {
  return `${error?.message ?? error}`.replace(/\s+/g, " ");
}

function say(line) {
  process.stdout.write(`${line}\n`);
}

await main(process.argv[2], process.argv[3]);

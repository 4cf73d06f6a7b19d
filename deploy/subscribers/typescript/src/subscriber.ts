// Prints deploy facts, one per line. A restart continues with the first unacknowledged fact.
//
//   npm ci && npm run build && node dist/subscriber.js CREDENTIALS
//
// The program acknowledges a fact after it has processed it. A fact without an acknowledgment is redelivered after half a
// minute. So process facts idempotently, or deduplicate them by ce-id.
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { jetstream, type Consumer, type JsMsg } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";

interface Credentials {
  url: string;
  user: string;
  password: string;
  inbox_prefix: string;
  stream: string;
  consumer: string;
  ca?: string;
}

interface Fact {
  fact: string;
  workload: { namespace: string; kind: string; name: string };
  duration_ms?: number;
}

const path = process.argv[2];
if (path === undefined) {
  console.error("usage: node dist/subscriber.js CREDENTIALS\n\nCREDENTIALS is the file that `lockstep subscriber create` wrote.");
  process.exit(2);
}
const credentials = JSON.parse(readFileSync(path, "utf8")) as Credentials;
const nats = await connect({
  servers: credentials.url.split(","),
  user: credentials.user,
  pass: credentials.password,
  inboxPrefix: credentials.inbox_prefix,
  name: "lockstep subscriber (TypeScript)",
  // The server closes every connection within an hour, and the client authenticates again.
  ignoreAuthErrorAbort: true,
  maxReconnectAttempts: -1,
  ...(credentials.ca ? { tls: { caFile: credentials.ca } } : {}),
});

let ending = false;
for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.once(signal, () => {
    ending = true;
    void nats.close();
  });
}

let consumer: Consumer | undefined;
while (!ending) {
  try {
    consumer ??= await jetstream(nats).consumers.get(credentials.stream, credentials.consumer);
    // Each request is short, because a broken connection loses the response.
    const messages = await consumer.fetch({ max_messages: 100, expires: 10_000 });
    for await (const message of messages) {
      show(message);
      await message.ackAck();
    }
  } catch (error) {
    if (nats.isClosed()) {
      break;
    }
    console.error(`subscriber: ${error instanceof Error ? error.message : String(error)}; trying on`);
    await sleep(1_000);
  }
}

function show(message: JsMsg): void {
  const { customData } = message.json<{ customData: Fact }>();
  const { namespace, kind, name } = customData.workload;
  const took = customData.duration_ms === undefined ? "" : `${customData.duration_ms} ms`;
  console.log([message.seq, customData.fact, `${namespace}/${kind}/${name}`, took, message.headers?.get("ce-id") ?? ""].join("\t"));
}

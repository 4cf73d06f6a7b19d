// An admission controller. It decides about jobs by lists of projects, zones and runners.
//
//   npm ci && npm run build && WEBHOOK_SECRET=whsec_… node dist/controller.js RULES
//
// RULES is a JSON file: see rules.ts. The program listens on LISTEN, by default 127.0.0.1:8090. It refuses requests that
// Lockstep has not signed.
import { readFileSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { Webhook, WebhookVerificationError } from "standardwebhooks";
import { decide, type Job, type Rules } from "./rules.js";

/** The largest request that Lockstep sends. */
const maxBody = 1 << 20;

class Refusal extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

const path = process.argv[2];
const secret = process.env["WEBHOOK_SECRET"];
if (path === undefined || !secret) {
  console.error("usage: WEBHOOK_SECRET=whsec_… node dist/controller.js RULES\n\nRULES is a JSON file: see rules.ts.");
  process.exit(2);
}
const rules = JSON.parse(readFileSync(path, "utf8")) as Rules;
const webhook = new Webhook(secret);

async function read(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > maxBody) {
      throw new Refusal(413, "the request is too large");
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString("utf8");
}

async function answer(request: IncomingMessage): Promise<string> {
  if (request.method !== "POST") {
    throw new Refusal(405, "send a POST request");
  }
  const body = await read(request);
  let jobs: unknown;
  try {
    // It parses the body after it has verified the signature, which includes the time, so that an old request is refused.
    jobs = webhook.verify(body, request.headers as Record<string, string>);
  } catch (error) {
    if (error instanceof WebhookVerificationError) {
      throw new Refusal(401, "the signature is not valid");
    }
    throw error instanceof SyntaxError ? new Refusal(400, "the request is not JSON") : error;
  }
  if (!Array.isArray(jobs) || jobs.length !== 1) {
    throw new Refusal(400, "the request is not an array of one job");
  }
  const decision = decide(rules, jobs[0] as Job);
  console.log(`job ${decision.id}: ${decision.admission} ${decision.reason ?? ""}`);
  return JSON.stringify([decision]);
}

const server = createServer((request: IncomingMessage, response: ServerResponse) => {
  answer(request).then(
    (body) => response.writeHead(200, { "Content-Type": "application/json" }).end(body),
    (error: unknown) => {
      const status = error instanceof Refusal ? error.status : 500;
      response.writeHead(status, { "Content-Type": "text/plain", Connection: "close" });
      response.end(error instanceof Refusal ? error.message : "the controller failed");
      if (status === 500) {
        console.error("controller:", error);
      }
    },
  );
});
server.requestTimeout = 30_000;
const listen = process.env["LISTEN"] ?? "127.0.0.1:8090";
const colon = listen.lastIndexOf(":");
server.listen(Number(listen.slice(colon + 1)), listen.slice(0, colon), () => {
  const { address, port } = server.address() as AddressInfo;
  console.log(`listening on http://${address}:${port}`);
});
for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.once(signal, () => server.close());
}

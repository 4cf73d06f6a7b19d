// Package admission is the service that decides which CI jobs may run, and on which runners, before a runner can see
// them. There is one per cell. [Main] builds the adapters and lists the parts. While NATS or PostgreSQL is unavailable,
// the service waits and reports it in /readyz.
//
// PostgreSQL is the authority. The service reads the stream JOBS, asks the controllers of each job that is preparing,
// and publishes what they decide to the stream ADMISSION. Several replicas share the work. Its packages are:
//
//   - api: the API for people: controllers and decisions
//   - callback: one-time tokens with which a controller answers later; jobtoken: tokens with which it reads about a job
//   - chain: the decision about a job from the answers of its controllers
//   - controller: settings of controllers and their limits
//   - decide: advances the chain of a job, and evaluates conditions and policies
//   - deliver: asks web servers, and ends what has not been answered in time
//   - endpoint: HTTP handlers for controllers
//   - nats: reads JOBS and RUNNERS, publishes the outbox; publish: encodes events
//   - payload: the public contract with controllers
//   - policy: controllers without a web server, as lists and rules in CEL
//   - postgres: loads and stores
package admission

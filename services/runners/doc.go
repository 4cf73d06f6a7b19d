// Package runners is the service that gives CI jobs to runners. There is one per cell. [Main] builds the adapters and
// lists the parts. While NATS or PostgreSQL is unavailable, the service waits and reports it in /readyz.
//
// PostgreSQL is the authority. Each transition of a job is stored with its event for the stream JOBS in one
// transaction. Its packages are:
//
//   - api: the API for people: pipelines, jobs, runners, traces and artifacts
//   - artifact: rules for artifacts, and the check of uploaded files; objects: stores their content
//   - assign: gives pending jobs to requests that wait for one; queue: these jobs, in fair order
//   - cifile: parses .gitlab-ci.yml; duration: parses its durations
//   - execution: serves jobs while a runner has them: updates, traces, artifacts, and runners that do not report
//   - gitlab: HTTP handlers of the contract with GitLab runners
//   - job: states, transitions and definitions of jobs
//   - nats: publishes events to the stream JOBS and reads it; publish: encodes them; rebuild: recreates the table of
//     jobs from them
//   - pipeline: which jobs a pipeline has, when they begin, and what a retry repeats
//   - postgres: loads and stores
//   - registration: creates, changes and deletes runners; runner: what a runner is, and which jobs it takes;
//     personaltoken: finds the user of a personal access token
//   - registry: gives jobs tokens for the container registry
//   - schedule: creates pipelines, and stores what follows from the end of a job, in transactions
//   - signing: keys of job tokens
//   - stuck: ends jobs that wait for a runner for too long
//   - trace: rules for the output of a job: offsets, checksum, masked values
//   - wire: messages of the HTTP contract with GitLab runners; openapi: checks them against the document, in
//     tests
package runners

// Package runners is the service that gives CI jobs to runners. There is one per cell. [Main] builds the adapters and
// lists the parts. While NATS or PostgreSQL is unavailable, the service waits and reports it in /readyz.
//
// It is not complete: it refuses every request of runners. Its packages are:
//
//   - artifact: rules for artifacts, and the check of uploaded files; objects: stores their content
//   - cifile: parses .gitlab-ci.yml; duration: parses its durations
//   - gitlab: HTTP handlers of the contract with GitLab runners
//   - job: states, transitions and definitions of jobs
//   - pipeline: which jobs a pipeline has, when they begin, and what a retry repeats
//   - registry: gives jobs tokens for the container registry
//   - trace: rules for the output of a job: offsets, checksum, masked values
//   - wire: messages of the HTTP contract with GitLab runners; openapi: checks them against the document, in
//     tests
package runners

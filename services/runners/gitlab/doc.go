// Package gitlab serves the HTTP contract of GitLab runners, which schemas/openapi/gitlab-runner.yaml describes. It
// decodes requests within their limits, finds the token, calls one of the interfaces [Runners], [Queue], [Jobs] and
// [Artifacts], and encodes what they return. It decides nothing and stores nothing.
//
// Runners react to statuses in their own way, and the handlers respect that. Three answers 403 in a row to requests for
// a job disable a runner for an hour. Runners ignore a 404 about a trace, so a job that is not known is 403. Every
// answer about a job has the header Job-Status, also a refusal, if the token is that of the job.
//
// No more of a body is read than its limit. The bodies of traces and artifacts are read after the token was checked.
package gitlab

// Package runnerreplay sends the recorded requests of a GitLab runner to a server, and checks that the runner would
// have accepted each answer.
//
// exchanges.jsonl has the requests of an unmodified gitlab-runner 17.9.3 with a shell executor, and the answers that it
// accepted, in their order: registration, eight jobs with artifacts, a failure, both kinds of cancellation, a trace
// that continues after 416, one that is sent again after 412, a timeout, and requests without a job. Tokens are
// replaced by names in braces, and the parts that equal other ones are left out. Only the start of each part of a trace
// was recorded; the rest is filled up to the recorded length, and checksums are computed.
//
// The recorded server did some things on purpose, such as losing a part of a trace. [Run] reproduces their cause where
// the server under test cannot know it: the field replay of an exchange says how.
package runnerreplay

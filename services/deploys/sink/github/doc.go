// Package github contains the sinks for GitHub: commit statuses, deployments, and one comment on the pull request of an
// environment.
//
// The commit and the repository of a fact come from its annotations, labels or image references ([sink.SourceConfig]).
// A fact without them is ignored. All sinks with the same token share GitHub's limits for writes, 80 a minute and 500
// an hour. They send one request at a time, as GitHub asks. Waiting facts become one write. After a response with a
// secondary rate limit (403 or 429), the sinks pause.
//
// Writes are idempotent. A status is written again only if it changed. GitHub allows 1,000 statuses of a commit; the
// last ones are reserved for the ends of rollouts. A deployment contains its rollout in the payload, and a comment
// contains a marker in its first line, so the sink finds them after a crash.
//
// If an object is unknown (404) or invalid (422), the fact is dead-lettered. If the token is rejected (401, 403), the
// delivery is retried, because an operator can renew the token.
package github

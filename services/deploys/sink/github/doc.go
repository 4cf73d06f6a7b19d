// Package github has the sinks for GitHub: commit statuses, deployments, and one comment on the
// pull request of an environment.
//
// Annotations, labels or image references of a fact name its commit and repository
// ([sink.SourceConfig]). A fact without them is ignored. All sinks with the same token share
// GitHub's limits for writes, 80 a minute and 500 an hour, and send one request at a time, as
// GitHub asks. Waiting facts become one write. A secondary limit (403 or 429) is obeyed.
//
// Writes are idempotent. A status is written again only if it changed, and the last of the 1,000
// statuses of a commit are reserved for the ends of rollouts. A deployment has its rollout in its
// payload, and a comment a mark in its first line, so the sink finds them after a crash.
//
// An unknown (404) or invalid (422) object dead-letters the fact. A refused token (401, 403) is
// retried, because tokens are renewed.
package github

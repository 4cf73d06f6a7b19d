// Package github has the sinks that tell GitHub of deploys: commit statuses, deployments, and one
// comment on the pull request of an environment.
//
// Which commit of which repository a fact brings is told by annotations, labels or image references
// ([sink.SourceConfig]); of a fact that does not tell, nothing is told. All sinks with the same
// token share the limits of GitHub's API for writers, 80 a minute and 500 an hour, and one request
// is made at a time, as GitHub asks; what waits is told as one. A secondary limit (403 or 429) is
// obeyed.
//
// Written once: a status is told again only when it says something else, and the last of the 1,000
// that a commit may have are kept for how a rollout ends; a deployment is known by its rollout in
// its payload, a comment by a mark in its first line, so that after a crash they are found, not
// made again.
//
// What GitHub does not know (404) or refuses (422) puts the fact on DEAD; a token that is refused
// (401, 403) is tried again, since tokens are renewed.
package github

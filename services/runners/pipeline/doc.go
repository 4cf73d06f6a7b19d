// Package pipeline decides which jobs a pipeline has and when they run. It is pure: no I/O and no clock.
//
// [NewPlan] turns a parsed .gitlab-ci.yml into jobs. [Advance] returns which created jobs begin and which are skipped,
// given the latest attempt of every job. [StateOf] is the state of the pipeline. [Cancel], [Retry] and [RetryFailed]
// are the commands of users; [ShouldRetry] and [RetryDelay] are the rules for retries without a user.
//
// The meaning is that of GitLab's documentation, with two differences from GitLab's behaviour, where the documentation
// is plain: a job with when: on_failure and needs runs if one of them failed, even if another one was skipped; a job
// with when: always runs after canceled jobs too. A pipeline that is canceled runs neither.
//
// Promises, each with a property test. A job begins only after all jobs before it ended. The results of the jobs alone
// decide how a pipeline ends, not their order. Every job ends if the jobs that begin end. Calls with the same statuses
// return the same steps.
package pipeline

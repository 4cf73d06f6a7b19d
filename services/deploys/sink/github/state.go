package github

import "lockstep.internal/schemas/gen/events"

// States of commit statuses and of deployments.
const (
	pending    = "pending"
	inProgress = "in_progress"
	success    = "success"
	failure    = "failure"
	failed     = "error"
	inactive   = "inactive"
)

// StatusFacts returns the default filter of commit statuses.
func StatusFacts() []string {
	return []string{
		"started", "stalled", "recovered", "blocked", "unblocked", "paused", "resumed", "completed", "superseded",
		"cancelled", "unknown", "environment_started", "environment_ready", "environment_failed",
	}
}

// DeploymentFacts returns the default filter of deployments.
func DeploymentFacts() []string {
	return []string{
		"started", "stalled", "recovered", "blocked", "unblocked", "completed", "superseded", "cancelled", "unknown",
	}
}

// CommentFacts returns the default filter of comments.
func CommentFacts() []string {
	return []string{"environment_started", "environment_ready", "environment_failed", "environment_removed"}
}

// statusOf returns the commit status for the latest fact, or "" if the fact does not change it.
func statusOf(f events.Fact) string {
	switch f {
	case events.FactStarted, events.FactProgressed, events.FactRecovered, events.FactUnblocked, events.FactPaused,
		events.FactResumed, events.FactRolledBack, events.FactRestarted, events.FactPartitionReached,
		events.FactEnvironmentStarted:
		return pending
	case events.FactCompleted, events.FactEnvironmentReady:
		return success
	case events.FactStalled, events.FactBlocked, events.FactEnvironmentFailed:
		return failure
	case events.FactSuperseded, events.FactCancelled, events.FactUnknown:
		return failed
	default:
		return ""
	}
}

// deploymentOf returns the deployment state for the latest fact, or "" if the fact does not change
// it.
func deploymentOf(f events.Fact) string {
	switch f {
	case events.FactSuperseded, events.FactRemoved, events.FactEnvironmentRemoved:
		return inactive
	default:
		if s := statusOf(f); s != pending {
			return s
		}
		return inProgress
	}
}

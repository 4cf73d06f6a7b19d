// Package deploys is the service that tells everyone when a deploy starts and how it ends, exactly once.
//
// It reads what watchers observe of workloads (stream OBSERVED), decides by a pure function which rollouts that means, and publishes each fact
// once on DEPLOYS as a CDEvent. Sinks carry facts to where people look; the history of rollouts is kept in PostgreSQL.
package deploys

// Package detection detects rollouts in a recorded range of the stream OBSERVED, and compares the facts with the
// published ones.
//
// [Detector] runs the package ingest of the deploys service with a store in memory. It publishes nothing. If the range
// starts with the first message of the stream, the facts are those of the service. If it starts later, existing
// workloads are a baseline that publishes no facts, and facts are numbered from 1. The size of batches makes no
// difference.
//
// [Detector.UseDecisions] repeats the service's decisions on ownership; [Detector.ResolveProjects] makes new ones.
//
// [Compare] pairs facts by id. For a range that starts later, it pairs them by workload, kind of fact and time.
package detection

// Package inflight decides when to list the pods of a workload: while a rollout is in flight and makes no progress. A
// rollout begins with a new revision and ends when all pods are updated and available. It is pure.
package inflight

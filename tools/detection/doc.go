// Package detection finds out which facts the deploys service concludes from a recorded part of the stream OBSERVED, and
// how they differ from the published ones.
//
// [Detector] runs the service's own package ingest with a store in memory. It publishes nothing. If the recording starts
// with the first message of the stream, the facts are those of the service. If it starts later, existing workloads are a
// silent baseline, and facts are numbered from 1.
//
// [Detector.UseDecisions] repeats the service's decisions on ownership; [Detector.ResolveProjects] makes new ones.
//
// [Compare] pairs facts by id. For a recording that starts later, it pairs them by what happened and when.
package detection

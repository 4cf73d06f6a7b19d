// Package job is a CI job: one attempt to execute a definition. It is pure.
//
// A [Job] changes by its methods only. Each returns the job after the transition and the name of its [Event]; the
// caller stores both in one transaction. A transition that is not possible is a *[TransitionError] and changes nothing.
//
//	created ─► preparing ─► pending ─► running ─► success, failed
//	   │           │           ▲  │        │
//	   ▼           ▼           └──┼────────┤ released
//	skipped    (rejected)         ▼        ▼
//	                           canceled ◄ canceling
//
// A job that ended never changes its state again. A retry is another job, which names the one that it replaces.
package job

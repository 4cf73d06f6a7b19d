// Package state is the authority for what people want: organizations, projects, users, agents, workspaces. It serves the API, keeps everything in
// PostgreSQL, reads what clusters say from NATS, and tells everybody what changed.
//
// [Main] puts the service together. What a workspace is and may become is in package domain, what its cluster makes of it in actualstate, what it is made of in
// render, who may do what in authz: all pure. Around them are the adapters: connectapi (the API), postgres (tables, outbox), nats (ingest, agents, secrets), vault.
//
// It promises: a request that was answered is stored, and its events follow; what a cluster says counts once, in order, although streams are read again
// after every crash; two replicas may run. While NATS is away the API works and events wait in the outbox; while PostgreSQL is away nothing is
// accepted. Both are waited for, and said in /readyz.
package state

// Package state is the authority for desired states and the directory: organizations, projects, users, agents
// and workspaces. It serves the API, decides desired against actual state, and publishes every change.
//
// Pure packages decide: workspace, orphan, agent, directory, actualstate (state from observations), ingest
// (batches of reports), render (manifests), publish (messages), devfile, authz. Adapters connect: api,
// postgres, nats, vault, signing. Package rebuild derives the read model again. [Main] wires them.
//
// An answered request is stored, and its events follow. A report takes effect once, in stream order, also
// after crashes. Two replicas may run. Without NATS the API works and events wait in the outbox; without
// PostgreSQL nothing is accepted. The service waits for both and reports them in /readyz.
package state

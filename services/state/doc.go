// Package state is the authority for desired states and the directory: organizations, projects, users, agents
// and workspaces. It serves the API, compares desired with actual state, and publishes every change.
//
// Packages workspace, orphan, agent, directory, move, actualstate (state from observations), render (manifests),
// publish (messages), devfile and authz decide without I/O. Packages ingest (batches of reports) and secret (which
// values are sealed for which agent) decide on what their Store reads. Adapters connect: api, postgres, nats, vault,
// signing. Package judge compares full resyncs with the stored objects. Package admin changes the directory and
// publishes the changes. Package rebuild recomputes the read model from the streams, and package republish publishes
// everything again after a restore. [Main] creates and connects the packages.
//
// A successful response means that the change is stored; its events are published afterwards. Each report is processed
// once, in stream order, also after crashes. Two replicas may run. Without NATS the API works and events wait in the
// outbox; without PostgreSQL nothing is accepted. The service waits for both and reports them in /readyz.
package state

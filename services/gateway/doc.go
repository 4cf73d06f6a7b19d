// Package gateway is the service through which people enter workspaces: by browser, and by SSH. It stores nothing but
// in NATS: any number of replicas may run. [Main] builds the adapters and lists the parts.
//
// It decides by its own copies of the streams ACCESS and DIRECTORY, so people can enter while the state service is
// down, and what people do ends within a second of losing the right to it. Before the copies are read, the service is
// not ready. While NATS is unavailable, it continues with what it knows, and reports it in /readyz.
//
// Its packages are:
//
//   - access: who may enter which workspace, the SSH keys of people, and the rights that somebody uses
//   - activity: counts what people do, for workspaces that stop when they are idle
//   - address, origin: host names of workspaces, and which pages may make which requests
//   - authority, dial: certificates for the agents of workspaces, and connections to workspaces
//   - nats: the adapters of the streams, of activity, and of what replicas share
//   - rpc: calls to the state service
//   - session, signin: encrypted cookies, sign-in by OpenID Connect and by the command line
//   - sshfront, webfront: the servers for people; the web terminal
//   - agent: the program in workspaces, cmd/workspace-agent
package gateway

// Package connectapi serves the relay's own API over Connect, gRPC and JSON: who is connected where, and, as an example of what can be asked of an agent, which pods its cluster has.
//
// Every relay answers for all, from its copy of the registry. A caller hears of the agents that it may reach; what it may not know of does not exist for it.
package connectapi

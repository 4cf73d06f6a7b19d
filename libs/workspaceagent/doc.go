// Package workspaceagent is the contract between the state service, which renders workspaces, and the workspace agent,
// which runs in them: the agent's configuration, and where everything is.
package workspaceagent

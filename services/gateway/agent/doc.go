// Package agent is the workspace agent: a small static program in each workspace, so that people can work in any image.
// The image needs no SSH server, no git and no editor; for a shell it needs a shell.
//
// Its commands in containers:
//
//	workspace-agent install DIR          copies itself to DIR, a volume that the containers share
//	workspace-agent copy FROM TO         copies a folder, such as the tools of an editor, from any image
//	workspace-agent clone                clones the projects of the workspace to its volume
//	workspace-agent run [-- COMMAND …]   serves SSH beside the command of the container, and runs the editor
//
// All read the same [workspaceagent.Config] from a file. The agent opens no connection to the control plane: the
// gateway, which is the only peer that the network policy of a workspace admits, opens SSH connections to it, with
// certificates that it signs itself and that are valid for one workspace and some minutes. The agent runs as the user
// of the workspace and writes to its volume only, so a read-only root file system and pod security "restricted" are
// enough.
//
// Packages clone (projects), sshserver (sessions, files, forwarding) and listening (open ports) do the work.
package agent

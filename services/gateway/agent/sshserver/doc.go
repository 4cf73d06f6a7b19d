// Package sshserver is the SSH server of the workspace agent: shells, commands, sftp, and forwarding of ports and of
// SSH agents. It uses golang.org/x/crypto/ssh alone: gliderlabs/ssh, the usual layer above it, changes line ends in the
// output of terminals.
//
// A client authenticates with a user certificate (OpenSSH's PROTOCOL.certkeys): signed by an authority of the
// workspace, for the workspace's id as user and principal. The extensions permit-pty, permit-port-forwarding and
// permit-agent-forwarding of the certificate say what it may do. Other ways to authenticate do not exist.
//
// Three subsystems: sftp, [SubsystemPorts], which answers with the open ports as a JSON array, and
// [workspaceagent.SubsystemProcesses], which answers with the programs of people that work, and end.
//
// When a connection ends, what its sessions run gets SIGHUP, as with OpenSSH, and is killed if it has not ended after
// some seconds. Programs that have left their session, such as tmux, continue.
package sshserver

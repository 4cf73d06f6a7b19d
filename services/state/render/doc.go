// Package render renders the Kubernetes objects of a workspace. It is pure: the same workspace with the same settings
// gives the same bytes.
//
// Objects, in order of application, in the namespace <prefix><agent>-<name>:
//
//	Namespace       pod security "restricted" is enforced, warned of and audited
//	ServiceAccount  <name>            without its token in pods
//	NetworkPolicy   <name>            ingress: the configured peers; egress: the cluster's DNS and public addresses
//	ResourceQuota   <name>            only with the setting
//	RoleBinding     <name>-owner      for the owner of the workspace; only with the setting
//	PersistentVolumeClaim <name>-data at /workspace; kept while stopped
//	ConfigMap       <name>-agent      configuration of the workspace agent; none without an agent
//	Service         <name>            the ports, and that of the agent; none without any
//	Deployment      <name>            0 or 1 replicas; strategy Recreate, because its volume has one writer
//
// The event also lists, by name and digest only, the Secrets <name>-env (variables), <name>-files (files at
// /run/secrets/workspace) and <name>-pull (pull secrets of the project, which the ServiceAccount names).
//
// With an agent, init containers of its image install it and clone the projects; it runs the command of the container
// and the editor, whose tools an init container of the editor's image copies.
//
// Every object, and the pods, carry the labels lockstep.dev/agent, lockstep.dev/workspace and
// lockstep.dev/workspace-name. The Deployment has the annotation lockstep.dev/desired-revision; its
// pods have lockstep.dev/secret-env-digest and lockstep.dev/secret-files-digest, so that new secrets
// replace the pod and a new revision alone does not.
//
// A spec or settings that were not validated give an error.
package render

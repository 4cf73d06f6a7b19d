// Package devfile reads a devfile of schema 2.2 into what a workspace is made of. It is pure: the same
// bytes give the same answer.
//
// A devfile describes more than a workspace is, so each field is one of three:
//
//	read     schemaVersion 2.2.x; metadata.name (the workspace's name where none is given); variables, put in place of {{name}} in texts as the
//	         schema says, never in names; one container component: image, env, command, args, memoryLimit and cpuLimit (or, without a limit, the
//	         request), endpoints (a port each; exposure none opens none), mountSources; one volume component: size
//	ignored  what describes and changes nothing: the rest of metadata, attributes, an endpoint's path and whether it is secure (nothing is
//	         reachable but through Lockstep), requests up to their limit (all of the limit is reserved), dedicatedPod (a container has its pod to itself);
//	         commands, which are offers to whoever works in the workspace and run nothing by themselves
//	refused  what asks for something that would not be there: every other kind of component, a second container or volume, a volume anywhere but at
//	         /workspace, an ephemeral one, UDP, annotations, events (they run commands), parent, projects, starterProjects, dependentProjects,
//	         metadata.globalMemoryLimit, and whatever the schema does not know
//
// Sources belong at /workspace, where the volume is: mountSources sets the variables PROJECTS_ROOT and
// PROJECT_SOURCE to it, and sourceMapping can say nothing else. A literal {{x}} is had through a
// variable of that value, since what is put in place is not looked at again.
//
// A fault is invalid_argument and names every field that is wrong by its path, such as
// components[0].container.image, with what to do; beyond [MaxSize] it is payload_too_large. Input is
// not trusted: YAML aliases are refused, depth and what variables make of it are bounded.
package devfile

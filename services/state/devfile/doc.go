// Package devfile reads a devfile of schema 2.2 and returns the specification of a workspace. It is pure: the same
// bytes give the same result.
//
// A devfile describes more than a workspace has. Each field is read, ignored or refused.
//
// Read: schemaVersion 2.2.x; metadata.name, the workspace's name if the request has none; variables, which replace
// {{name}} in texts as the schema specifies, never in names; one container component with image, env, command, args,
// memoryLimit and cpuLimit (or, without a limit, the request), endpoints (one port each, none if exposure is none) and
// mountSources; one volume component with its size.
//
// Ignored, because they change nothing: the rest of metadata; attributes; path and secure of an endpoint, because
// all traffic goes through Lockstep; requests below the limit, because the whole limit is requested; dedicatedPod,
// because a container always has its own pod; commands, because only a user runs them.
//
// Parents: [Resolve] merges a devfile with its parent before it is read, as the schema specifies. What `parent` changes
// must exist in the parent, and what the devfile adds must not; variables and attributes of the devfile count more.
// Merging is pure; the caller fetches parents.
//
// Refused, because they are not supported: other kinds of components, a second container or volume, a volume at
// another path than /workspace, an ephemeral volume, UDP, annotations, events (they run commands), projects,
// starterProjects, dependentProjects, metadata.globalMemoryLimit, and every field that the schema does not have.
//
// Sources belong in /workspace, where the volume is mounted: mountSources sets the variables PROJECTS_ROOT and
// PROJECT_SOURCE to it, and sourceMapping may have no other value. Replaced text is not replaced again, so a variable
// with the value {{x}} gives a literal {{x}}.
//
// Errors are the fault invalid_argument. It names the path of every invalid field, such as
// components[0].container.image, and what to do. A devfile above [MaxSize] is payload_too_large. The input is
// untrusted: YAML aliases are refused, and the depth and the size after the replacement of variables are limited.
package devfile

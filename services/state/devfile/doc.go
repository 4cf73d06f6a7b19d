// Package devfile reads a devfile of schema 2.2 and returns the specification of a workspace. It is pure: the same
// bytes give the same result.
//
// A devfile describes more than a workspace has. Each field is read, ignored, ignored with a warning, or refused.
// docs/workspaces.md describes them for people.
//
// Read: schemaVersion; metadata.name, the workspace's name if the request has none; variables, which replace {{name}}
// in texts as the schema specifies, never in names; container components, endpoints and volumes; projects, or else the
// first of starterProjects; commands, and those of events.postStart; the attribute with the editor.
//
// Ignored, because they change nothing: the rest of metadata; path and secure of an endpoint, because all traffic goes
// through Lockstep; requests below the limit, because the whole limit is requested.
//
// Ignored with a warning, which the workspace shows: what a workspace does not need, such as components for production,
// dedicatedPod, annotations, and commands that run when it stops.
//
// Parents: [Resolve] merges a devfile with its parent before it is read, as the schema specifies. What `parent` changes
// must exist in the parent, and what the devfile adds must not; variables and attributes of the devfile count more.
// Merging is pure; the caller fetches parents.
//
// Refused, because the workspace would lack what the devfile needs: components that must be deployed or built,
// plugins, events.preStart, dependentProjects, UDP, and every field that the schema does not have.
//
// Replaced text is not replaced again, so a variable with the value {{x}} gives a literal {{x}}.
//
// Errors are the fault invalid_argument. It names the path of every invalid field, such as
// components[0].container.image, and what to do. A devfile above [MaxSize] is payload_too_large. The input is
// untrusted: YAML aliases are refused, and the depth and the size after the replacement of variables are limited.
package devfile

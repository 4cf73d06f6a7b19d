package domain

// Labels and annotations that Lockstep puts on what it applies.
const (
	// LabelAgent is the id of the agent, on every object.
	LabelAgent = "lockstep.dev/agent"
	// LabelWorkspace is the id of the workspace, on every object.
	LabelWorkspace = "lockstep.dev/workspace"
	// LabelWorkspaceName is the name of the workspace, and of its Deployment, on every object.
	LabelWorkspaceName = "lockstep.dev/workspace-name"
	// AnnotationDesiredRevision is the desired revision that a Deployment was applied with.
	AnnotationDesiredRevision = "lockstep.dev/desired-revision"
)

package asyncapi

// parameters describes every parameter that a subject may have.
func parameters() map[string]parameter {
	return map[string]parameter{
		"cell": {
			Description: "The cell: one NATS system and one PostgreSQL. A DNS label.",
			Default:     "local", Examples: []string{"local", "eu-1"},
		},
		"agent": {
			Description: "Id of the agent whose cluster it is about. The server lets an agent write below its own id only.",
			Examples:    []string{"7"},
		},
		"kind": {
			Description: "Kind, in lower case singular, of the workload that the object is or belongs to: " +
				"pods and ReplicaSets travel under their Deployment.",
			Examples: []string{"deployment"},
		},
		"namespace": {
			Description: "Namespace of that workload, escaped; _ when it has none.",
			Examples:    []string{"ws-7-tidy-otter"},
		},
		"name": {Description: "Name of that workload, escaped.", Examples: []string{"tidy-otter"}},
		"cluster": {
			Description: "UID of the cluster's kube-system namespace.",
			Examples:    []string{"6f1d9c34-0b5e-4c7e-9f0a-2d1f6f4f5a10"},
		},
		"fact": {Description: "What happened.", Examples: []string{"started", "completed"}},
		"sink": {Description: "Name of the sink that is to deliver it.", Examples: []string{"slack"}},
		"workspace": {
			Description: "Id of the workspace, a UUIDv7.", Examples: []string{"0199c0de-7a31-7c55-b1d4-3f2a9e10c6aa"},
		},
		"fingerprint": {
			Description: "SHA-256 of the public key, in hexadecimal digits.",
			Examples:    []string{"4f1c9a0be7d25c83f1a66d90b2e4c7a85d3390eaf617b2c4d8095e1fa3b76c2d"},
		},
		"project": {
			Description: "Id of the project of the workspace or CI job; 0 for workspaces that belong to none.",
			Examples:    []string{"4"},
		},
		"job":    {Description: "Id of the CI job.", Examples: []string{"9001"}},
		"runner": {Description: "Id of the runner.", Examples: []string{"31"}},
		"id": {
			Description: "Id of the entry; a membership's is <user>-<scope>-<id of the scope>.",
			Examples:    []string{"4", "5-project-4"},
		},
		"service": {Description: "Service that could not process the message.", Examples: []string{"state"}},
		"original": {
			Description: "The message's original subject without lockstep.<cell>.: several tokens.",
			Examples:    []string{"observed.7.tick"},
		},
	}
}

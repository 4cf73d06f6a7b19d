package workspace

import (
	"time"

	"lockstep.internal/libs/workspaceagent"
)

// Folder is the path of the volume in the container of a workspace.
const Folder = "/workspace"

// Spec describes the containers of a workspace. Its JSON is stored.
type Spec struct {
	// Image of the container, such as registry.example/ide:9. Required.
	Image string `json:"image"`
	// Ports that the workspace serves.
	Ports []Port `json:"ports,omitempty"`
	// Env holds plain environment variables.
	Env map[string]string `json:"env,omitempty"`
	// CPU is a Kubernetes quantity. In a template it may be empty, as Memory and VolumeSize: the agent of the
	// workspace has the default.
	CPU string `json:"cpu,omitempty"`
	// Memory is a Kubernetes quantity.
	Memory string `json:"memory,omitempty"`
	// VolumeSize is the Kubernetes quantity of the volume at /workspace.
	VolumeSize string `json:"volume_size,omitempty"`
	// StorageClass of the volume, which never changes. Empty for the cluster's default. The agent's configuration sets
	// it when the workspace is created.
	StorageClass string `json:"storage_class,omitempty"`
	// Command replaces the image's entrypoint if it is not empty.
	Command []string `json:"command,omitempty"`
	// Args replace the image's arguments if they are not empty.
	Args []string `json:"args,omitempty"`
	// Projects are repositories that are cloned to the volume when the workspace starts and their folders do not exist.
	Projects []workspaceagent.Project `json:"projects,omitempty"`
	// Mounts of the container besides Folder.
	Mounts []Mount `json:"mounts,omitempty"`
	// Containers run beside it.
	Containers []Container `json:"containers,omitempty"`
	// PostStart are commands that the workspace agent runs in the container each time that it starts.
	PostStart []workspaceagent.Command `json:"post_start,omitempty"`
	// Commands are offered to people by the workspace agent.
	Commands []workspaceagent.Command `json:"commands,omitempty"`
	// StopAfterIdle stops the workspace after a time without activity. 0 for the policy of its agent, which may be
	// shorter.
	StopAfterIdle time.Duration `json:"stop_after_idle_ns,omitempty"`
	// IdleCountsProcesses makes work of programs that people have started activity. If false, the policy of its agent
	// counts.
	IdleCountsProcesses bool `json:"idle_counts_processes,omitempty"`
	// Editor is what people open in the browser. Nil for none.
	Editor *Editor `json:"editor,omitempty"`
	// Warnings say what of a devfile has no effect, as sentences for people.
	Warnings []string `json:"warnings,omitempty"`
	// SecretEnv names the secret variables. Their values are stored sealed.
	SecretEnv []string `json:"secret_env,omitempty"`
	// SecretFiles are the paths of secret files below /run/secrets/workspace.
	SecretFiles []string `json:"secret_files,omitempty"`
	// SecretEnvDigest is the keyed digest of the secret variables. Required with SecretEnv.
	SecretEnvDigest string `json:"secret_env_digest,omitempty"`
	// SecretFilesDigest is the keyed digest of the secret files. Required with SecretFiles.
	SecretFilesDigest string `json:"secret_files_digest,omitempty"`
	// PullSecretDigest is the keyed digest of the project's pull secrets. Empty if it has none.
	PullSecretDigest string `json:"pull_secret_digest,omitempty"`
}

// Port is a port that a workspace serves.
type Port struct {
	// Name is a DNS label of at most 15 characters with a letter, unique in the spec.
	Name string `json:"name"`
	// Number from 1 to 65535, unique in the spec.
	Number int32 `json:"number"`
}

// Validate returns the fault invalid_argument with every invalid field, such as "ports[0].name"; nil if
// all are valid. An empty size is valid, because it has a default. It ignores the digests, which users do not set.
func (s Spec) Validate() error {
	s = s.WithDefaults(DefaultSizes())
	var f fieldErrors
	s.check(&f)
	return f.Err("the spec")
}

// normalized replaces empty lists and maps with nil, so that reflect.DeepEqual treats them as equal.
func (s Spec) normalized() Spec {
	if len(s.Ports) == 0 {
		s.Ports = nil
	}
	if len(s.Env) == 0 {
		s.Env = nil
	}
	if len(s.Projects) == 0 {
		s.Projects = nil
	}
	if len(s.Mounts) == 0 {
		s.Mounts = nil
	}
	if len(s.Containers) == 0 {
		s.Containers = nil
	}
	if len(s.PostStart) == 0 {
		s.PostStart = nil
	}
	if len(s.Commands) == 0 {
		s.Commands = nil
	}
	for _, list := range []*[]string{&s.Command, &s.Args, &s.SecretEnv, &s.SecretFiles, &s.Warnings} {
		if len(*list) == 0 {
			*list = nil
		}
	}
	return s
}

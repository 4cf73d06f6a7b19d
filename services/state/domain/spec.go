package domain

// Spec is what a workspace is made of: a template with the creator's changes. Its JSON is what the database keeps.
type Spec struct {
	// Image of the container, such as registry.example/ide:9. Required.
	Image string `json:"image"`
	// Ports that the workspace serves.
	Ports []Port `json:"ports,omitempty"`
	// Env is plain environment variables.
	Env map[string]string `json:"env,omitempty"`
	// CPU is a Kubernetes quantity. Defaults to 500m.
	CPU string `json:"cpu,omitempty"`
	// Memory is a Kubernetes quantity. Defaults to 1Gi.
	Memory string `json:"memory,omitempty"`
	// VolumeSize is the Kubernetes quantity of the volume at /workspace. Defaults to 10Gi.
	VolumeSize string `json:"volume_size,omitempty"`
	// Command overrides the image's entrypoint when not empty.
	Command []string `json:"command,omitempty"`
	// Args are the arguments of the command, in place of the image's when not empty. With an empty Command they are those of the image's entrypoint.
	Args []string `json:"args,omitempty"`
	// SecretEnv is the names of the secret variables, whose values are not here.
	SecretEnv []string `json:"secret_env,omitempty"`
	// SecretFiles is the paths of the secret files below /run/secrets/workspace, whose contents are not here.
	SecretFiles []string `json:"secret_files,omitempty"`
	// SecretEnvDigest is the keyed digest of the secret variables' values, made by the store of secrets. Required with SecretEnv.
	SecretEnvDigest string `json:"secret_env_digest,omitempty"`
	// SecretFilesDigest is the keyed digest of the secret files' contents. Required with SecretFiles.
	SecretFilesDigest string `json:"secret_files_digest,omitempty"`
}

// Port is a port that a workspace serves.
type Port struct {
	// Name is a DNS label of at most 15 characters with a letter, unique among the ports.
	Name string `json:"name"`
	// Number from 1 to 65535.
	Number int32 `json:"number"`
}

// TemplateDevfile stands for the name of a template where a workspace was made from a devfile. No template can be called that.
const TemplateDevfile = "(devfile)"

// Defaults of a spec.
const (
	DefaultCPU        = "500m"
	DefaultMemory     = "1Gi"
	DefaultVolumeSize = "10Gi"
)

// WithDefaults fills what is empty.
func (s Spec) WithDefaults() Spec {
	if s.CPU == "" {
		s.CPU = DefaultCPU
	}
	if s.Memory == "" {
		s.Memory = DefaultMemory
	}
	if s.VolumeSize == "" {
		s.VolumeSize = DefaultVolumeSize
	}
	return s
}

// Validate returns every fault of the spec at once as one fault invalid_argument, whose details are sentences by field path such as
// "ports[0].name"; nil when there is none. Call it on a spec with defaults. The digests are not looked at: they are not the user's.
func (s Spec) Validate() error {
	var f faults
	s.check(&f)
	return f.err("the spec")
}

// normal has empty where there is nothing, so that equal specs are deeply equal.
func (s Spec) normal() Spec {
	if len(s.Ports) == 0 {
		s.Ports = nil
	}
	if len(s.Env) == 0 {
		s.Env = nil
	}
	for _, list := range []*[]string{&s.Command, &s.Args, &s.SecretEnv, &s.SecretFiles} {
		if len(*list) == 0 {
			*list = nil
		}
	}
	return s
}

package wire

// Info is what a runner reports about itself. All texts may be empty.
type Info struct {
	Name         string   `json:"name,omitempty"`
	Version      string   `json:"version,omitempty"`
	Revision     string   `json:"revision,omitempty"`
	Platform     string   `json:"platform,omitempty"`
	Architecture string   `json:"architecture,omitempty"`
	Executor     string   `json:"executor,omitempty"`
	Shell        string   `json:"shell,omitempty"`
	Features     Features `json:"features"`
	Config       Config   `json:"config"`
}

// Config is the part of a runner's configuration that it reports.
type Config struct {
	GPUs string `json:"gpus"`
}

// Features that a runner has. There are more; these decide what a job may ask for.
type Features struct {
	Variables               bool `json:"variables"`
	RawVariables            bool `json:"raw_variables"`
	Image                   bool `json:"image"`
	Services                bool `json:"services"`
	Artifacts               bool `json:"artifacts"`
	ArtifactsExclude        bool `json:"artifacts_exclude"`
	UploadMultipleArtifacts bool `json:"upload_multiple_artifacts"`
	UploadRawArtifacts      bool `json:"upload_raw_artifacts"`
	Masking                 bool `json:"masking"`
	MultiBuildSteps         bool `json:"multi_build_steps"`
	TraceReset              bool `json:"trace_reset"`
	TraceChecksum           bool `json:"trace_checksum"`
	TraceSize               bool `json:"trace_size"`
	Cancelable              bool `json:"cancelable"`
	CancelGracefully        bool `json:"cancel_gracefully"`
	ReturnExitCode          bool `json:"return_exit_code"`
}

func (i Info) validate() error {
	return checkTexts(
		field{name: "info.name", text: i.Name},
		field{name: "info.version", text: i.Version},
		field{name: "info.revision", text: i.Revision},
		field{name: "info.platform", text: i.Platform},
		field{name: "info.architecture", text: i.Architecture},
		field{name: "info.executor", text: i.Executor},
		field{name: "info.shell", text: i.Shell},
		field{name: "info.config.gpus", text: i.Config.GPUs},
	)
}

package api

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/state/vault"
	"lockstep.internal/services/state/workspace"
)

// maxSecretBytes limits the secret values of one request, and the values of each Secret of a workspace, names included.
// A Kubernetes Secret holds at most 1 MiB, and one reply to the dispatcher carries all values of a Secret.
const maxSecretBytes = 512 << 10

func spec(s workspace.Spec) *statev1.WorkspaceSpec {
	return &statev1.WorkspaceSpec{
		Image:       s.Image,
		Ports:       convertAll(s.Ports, port),
		Env:         s.Env,
		Cpu:         s.CPU,
		Memory:      s.Memory,
		VolumeSize:  s.VolumeSize,
		Command:     s.Command,
		Args:        s.Args,
		SecretEnv:   s.SecretEnv,
		SecretFiles: s.SecretFiles,
		Projects:    convertAll(s.Projects, clonedProject),
		Mounts:      convertAll(s.Mounts, mount),
		Containers:  convertAll(s.Containers, container),
		PostStart:   convertAll(s.PostStart, command),
		Commands:    convertAll(s.Commands, command),
		Warnings:    s.Warnings,

		StopAfterIdle:       optionalDuration(s.StopAfterIdle),
		IdleCountsProcesses: s.IdleCountsProcesses,
		Editor:              editor(s.Editor),
	}
}

// optionalDuration returns nil for 0.
func optionalDuration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

func editor(e *workspace.Editor) *statev1.Editor {
	if e == nil {
		return nil
	}
	return &statev1.Editor{Image: e.Image, Path: e.Path, Command: e.Command, Port: e.Port}
}

func editorOf(e *statev1.Editor) *workspace.Editor {
	if e == nil {
		return nil
	}
	return &workspace.Editor{Image: e.GetImage(), Path: e.GetPath(), Command: e.GetCommand(), Port: e.GetPort()}
}

func clonedProject(p workspaceagent.Project) *statev1.ClonedProject {
	return &statev1.ClonedProject{
		Name: p.Name, Url: p.URL, Revision: p.Revision, Folder: p.Folder, Depth: int32(p.Depth), Remotes: p.Remotes,
	}
}

func clonedProjectOf(p *statev1.ClonedProject) workspaceagent.Project {
	return workspaceagent.Project{
		Name: p.GetName(), URL: p.GetUrl(), Revision: p.GetRevision(), Folder: p.GetFolder(), Depth: int(p.GetDepth()),
		Remotes: p.GetRemotes(),
	}
}

func port(p workspace.Port) *statev1.Port { return &statev1.Port{Name: p.Name, Number: p.Number} }

func portOf(p *statev1.Port) workspace.Port {
	return workspace.Port{Name: p.GetName(), Number: p.GetNumber()}
}

func specOf(s *statev1.WorkspaceSpec) workspace.Spec {
	return workspace.Spec{
		Image:      s.GetImage(),
		Ports:      convertAll(s.GetPorts(), portOf),
		Env:        s.GetEnv(),
		CPU:        s.GetCpu(),
		Memory:     s.GetMemory(),
		VolumeSize: s.GetVolumeSize(),
		Command:    s.GetCommand(),
		Args:       s.GetArgs(),
		Projects:   convertAll(s.GetProjects(), clonedProjectOf),
		Mounts:     convertAll(s.GetMounts(), mountOf),
		Containers: convertAll(s.GetContainers(), containerOf),
		PostStart:  convertAll(s.GetPostStart(), commandOf),
		Commands:   convertAll(s.GetCommands(), commandOf),

		StopAfterIdle:       s.GetStopAfterIdle().AsDuration(),
		IdleCountsProcesses: s.GetIdleCountsProcesses(),
		Editor:              editorOf(s.GetEditor()),
	}
}

// override returns the spec with the overrides of a request, without secrets.
func override(base workspace.Spec, o *statev1.WorkspaceOverrides) workspace.Spec {
	replace := func(field *string, value string) {
		if value != "" {
			*field = value
		}
	}
	replace(&base.Image, o.GetImage())
	replace(&base.CPU, o.GetCpu())
	replace(&base.Memory, o.GetMemory())
	replace(&base.VolumeSize, o.GetVolumeSize())
	if len(o.GetCommand()) > 0 {
		// The old arguments belong to the old command.
		base.Command, base.Args = o.GetCommand(), nil
	}
	if len(o.GetArgs()) > 0 {
		base.Args = o.GetArgs()
	}
	if len(o.GetPorts()) > 0 {
		base.Ports = convertAll(o.GetPorts(), portOf)
	}
	if len(o.GetProjects()) > 0 {
		base.Projects = convertAll(o.GetProjects(), clonedProjectOf)
	}
	if o.GetStopAfterIdle() != nil {
		base.StopAfterIdle = o.GetStopAfterIdle().AsDuration()
	}
	if o != nil && o.IdleCountsProcesses != nil {
		base.IdleCountsProcesses = o.GetIdleCountsProcesses()
	}
	if len(o.GetEnv()) > 0 {
		env := maps.Clone(base.Env)
		if env == nil {
			env = map[string]string{}
		}
		maps.Copy(env, o.GetEnv())
		base.Env = env
	}
	return base
}

// without returns a copy of the values without the removed names, at least an empty map. It returns the fault
// invalid_argument for a name that is not there.
func without[V any](field string, values map[string]V, removed []string) (map[string]V, error) {
	rest := make(map[string]V, len(values))
	maps.Copy(rest, values)
	for _, name := range removed {
		if _, found := rest[name]; !found {
			return nil, fault.New(errcode.InvalidArgument, "%s: the workspace has no %.80q", field, name).With("field", field)
		}
		delete(rest, name)
	}
	return rest, nil
}

// secretValues are the secrets of a request by kind.
type secretValues map[vault.Kind]seal.Values

func secretsOf(o *statev1.WorkspaceOverrides) (secretValues, error) {
	out := secretValues{}
	size := 0
	for name, value := range o.GetSecretEnv() {
		out.add(vault.Env, name, value)
		size += len(name) + len(value)
	}
	for name, value := range o.GetSecretFiles() {
		out.add(vault.Files, name, string(value))
		size += len(name) + len(value)
	}
	if size > maxSecretBytes {
		return nil, fault.New(
			errcode.PayloadTooLarge,
			"the secrets have %d bytes, the limit of a request is %d",
			size,
			maxSecretBytes,
		)
	}
	return out, nil
}

func (s secretValues) add(kind vault.Kind, name, value string) {
	if s[kind] == nil {
		s[kind] = seal.Values{}
	}
	s[kind][name] = seal.NewValue(value)
}

// changeSecrets returns the stored values of a kind without the removed and with the given ones.
// It returns the fault payload_too_large if they exceed maxSecretBytes.
func changeSecrets(kind vault.Kind, stored, given seal.Values, removed []string) (seal.Values, error) {
	merged, err := without("removed_secret_"+string(kind), stored, removed)
	if err != nil {
		return nil, err
	}
	maps.Copy(merged, given)
	size := 0
	for name, value := range merged {
		size += len(name) + len(value.Reveal())
	}
	if size > maxSecretBytes {
		field := "secret_" + string(kind)
		return nil, fault.New(
			errcode.PayloadTooLarge,
			"%s: the workspace would have %d bytes with these values, the limit is %d; give shorter values",
			field, size, maxSecretBytes,
		).With("field", field)
	}
	return merged, nil
}

// withSecretNames sets the names and the digest of secret values in the spec, never the values.
func withSecretNames(spec workspace.Spec, kind vault.Kind, values seal.Values, digest string) workspace.Spec {
	names := slices.Sorted(maps.Keys(values))
	if len(names) == 0 {
		digest = ""
	}
	switch kind {
	case vault.Env:
		spec.SecretEnv, spec.SecretEnvDigest = names, digest
	case vault.Files:
		spec.SecretFiles, spec.SecretFilesDigest = names, digest
	case vault.Pull: // of the project, see workspaceService.withSettings
	}
	return spec
}

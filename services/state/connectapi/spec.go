package connectapi

import (
	"maps"
	"slices"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/seal"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/state/domain"
	"lockstep.internal/services/state/vault"
)

// maxSecretBytes bounds all secret values of one kind of one workspace: a Kubernetes Secret holds at most 1 MiB, and they travel in one reply.
const maxSecretBytes = 512 << 10

func spec(s domain.Spec) *statev1.WorkspaceSpec {
	return &statev1.WorkspaceSpec{
		Image: s.Image, Ports: each(s.Ports, port), Env: s.Env, Cpu: s.CPU, Memory: s.Memory, VolumeSize: s.VolumeSize, Command: s.Command, Args: s.Args,
		SecretEnv: s.SecretEnv, SecretFiles: s.SecretFiles,
	}
}

func port(p domain.Port) *statev1.Port { return &statev1.Port{Name: p.Name, Number: p.Number} }

func portOf(p *statev1.Port) domain.Port {
	return domain.Port{Name: p.GetName(), Number: p.GetNumber()}
}

func specOf(s *statev1.WorkspaceSpec) domain.Spec {
	return domain.Spec{
		Image: s.GetImage(), Ports: each(s.GetPorts(), portOf), Env: s.GetEnv(), CPU: s.GetCpu(), Memory: s.GetMemory(), VolumeSize: s.GetVolumeSize(), Command: s.GetCommand(),
		Args: s.GetArgs(),
	}
}

// override returns the spec with the creator's changes. Secrets are not part of it.
func override(base domain.Spec, o *statev1.WorkspaceOverrides) domain.Spec {
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
		// The arguments that are there are another command's.
		base.Command, base.Args = o.GetCommand(), nil
	}
	if len(o.GetArgs()) > 0 {
		base.Args = o.GetArgs()
	}
	if len(o.GetPorts()) > 0 {
		base.Ports = each(o.GetPorts(), portOf)
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

// secretValues are the secrets of a request.
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
		return nil, fault.New(errcode.PayloadTooLarge, "the secrets have %d bytes, at most %d are kept for one workspace", size, maxSecretBytes)
	}
	return out, nil
}

func (s secretValues) add(kind vault.Kind, name, value string) {
	if s[kind] == nil {
		s[kind] = seal.Values{}
	}
	s[kind][name] = seal.NewValue(value)
}

// describe notes names and digest of the values in the spec, never the values.
func describe(spec domain.Spec, kind vault.Kind, values seal.Values, digest string) domain.Spec {
	names := slices.Sorted(maps.Keys(values))
	switch kind {
	case vault.Env:
		spec.SecretEnv, spec.SecretEnvDigest = names, digest
	case vault.Files:
		spec.SecretFiles, spec.SecretFilesDigest = names, digest
	}
	return spec
}

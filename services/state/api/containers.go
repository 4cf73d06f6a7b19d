package api

import (
	"lockstep.internal/libs/workspaceagent"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/state/workspace"
)

func mount(m workspace.Mount) *statev1.Mount {
	return &statev1.Mount{Volume: m.Volume, Path: m.Path, Ephemeral: m.Ephemeral}
}

func mountOf(m *statev1.Mount) workspace.Mount {
	return workspace.Mount{Volume: m.GetVolume(), Path: m.GetPath(), Ephemeral: m.GetEphemeral()}
}

func container(c workspace.Container) *statev1.Container {
	return &statev1.Container{
		Name: c.Name, Image: c.Image, Env: c.Env, Cpu: c.CPU, Memory: c.Memory, Command: c.Command, Args: c.Args,
		Mounts: convertAll(c.Mounts, mount), PostStart: c.PostStart,
	}
}

func containerOf(c *statev1.Container) workspace.Container {
	return workspace.Container{
		Name: c.GetName(), Image: c.GetImage(), Env: c.GetEnv(), CPU: c.GetCpu(), Memory: c.GetMemory(),
		Command: c.GetCommand(), Args: c.GetArgs(), Mounts: convertAll(c.GetMounts(), mountOf), PostStart: c.GetPostStart(),
	}
}

func command(c workspaceagent.Command) *statev1.Command {
	return &statev1.Command{Name: c.Name, Line: c.Line}
}

func commandOf(c *statev1.Command) workspaceagent.Command {
	return workspaceagent.Command{Name: c.GetName(), Line: c.GetLine()}
}

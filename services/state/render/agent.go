package render

import (
	"encoding/json"
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/services/state/workspace"
)

// Names and paths of the workspace agent in pods.
const (
	agentVolume       = "agent"
	agentPath         = "/lockstep"
	agentConfigVolume = "agent-config"
	agentPortName     = "lockstep-ssh"
	installContainer  = "lockstep-install"
	editorVolume      = "editor"
	editorPath        = "/lockstep-editor"
	editorContainer   = "lockstep-editor"
	// editorSize limits the tools of an editor.
	editorSize = "4Gi"
)

func (r rendering) agentName() string { return r.Name + "-agent" }

// hasAgent reports whether the workspace gets an agent.
func (r rendering) hasAgent() bool { return r.settings.AgentImage != "" }

// agentConfig is the configuration of the agent. The agent reads it from the mounted file, so new authorities count
// without a restart.
func (r rendering) agentConfig() (corev1.ConfigMap, error) {
	config := workspaceagent.Config{
		Workspace: r.ID.String(), Authorities: r.settings.SSHAuthorities, Home: workspace.Folder,
		Projects: r.Spec.Projects, PostStart: r.Spec.PostStart, Commands: r.Spec.Commands,
	}
	if len(r.Spec.SecretFiles) > 0 {
		config.Credentials = secretsPath
	}
	if e := r.Spec.Editor; e != nil {
		config.Editor = &workspaceagent.Editor{Line: e.Command, Port: int(e.Port)}
		if e.Image != "" {
			config.Editor.Folder = editorPath
		}
	}
	data, err := json.Marshal(config)
	if err != nil {
		return corev1.ConfigMap{}, fmt.Errorf("configuration of the workspace agent: %w", err)
	}
	return corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: r.meta(r.agentName()),
		Data:       map[string]string{path.Base(workspaceagent.ConfigFile): string(data)},
	}, nil
}

// addAgent makes the agent a part of a pod: init containers install it and clone the projects, and it runs the command
// of the container.
func (r rendering) addAgent(pod *corev1.PodSpec) {
	pod.Volumes = append(pod.Volumes,
		corev1.Volume{Name: agentVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		corev1.Volume{Name: agentConfigVolume, VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: r.agentName()}},
		}},
	)
	config := corev1.VolumeMount{Name: agentConfigVolume, MountPath: path.Dir(workspaceagent.ConfigFile), ReadOnly: true}
	main := &pod.Containers[0]
	pod.InitContainers = append(pod.InitContainers, r.agentContainer(installContainer, main.Resources,
		[]string{"install", agentPath}, corev1.VolumeMount{Name: agentVolume, MountPath: agentPath}))
	if len(r.Spec.Projects) > 0 {
		// The volume, and the secret files if there are any.
		mounts := append([]corev1.VolumeMount{config}, main.VolumeMounts...)
		pod.InitContainers = append(pod.InitContainers,
			r.agentContainer(workspaceagent.CloneContainer, main.Resources, []string{"clone"}, mounts...))
	}
	r.addEditor(pod)
	command := append([]string{agentPath + "/" + workspaceagent.Program, "run"}, separated(r.Spec)...)
	main.Command, main.Args = command, nil
	main.VolumeMounts = append(main.VolumeMounts, config,
		corev1.VolumeMount{Name: agentVolume, MountPath: agentPath, ReadOnly: true})
	main.Ports = append(main.Ports, corev1.ContainerPort{
		Name: agentPortName, ContainerPort: workspaceagent.Port, Protocol: corev1.ProtocolTCP,
	})
}

// addEditor makes the editor a part of a pod. The agent copies its tools, so its image needs no program for that.
func (r rendering) addEditor(pod *corev1.PodSpec) {
	e := r.Spec.Editor
	if e == nil {
		return
	}
	main := &pod.Containers[0]
	main.Ports = append(main.Ports, corev1.ContainerPort{
		Name: workspace.EditorPortName, ContainerPort: e.Port, Protocol: corev1.ProtocolTCP,
	})
	if e.Image == "" {
		return
	}
	limit := resource.MustParse(editorSize)
	pod.Volumes = append(pod.Volumes, corev1.Volume{
		Name: editorVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}},
	})
	tools := r.agentContainer(editorContainer, main.Resources, []string{"copy", literal(e.Path), editorPath},
		corev1.VolumeMount{Name: agentVolume, MountPath: agentPath, ReadOnly: true},
		corev1.VolumeMount{Name: editorVolume, MountPath: editorPath})
	tools.Image, tools.Command = e.Image, []string{agentPath + "/" + workspaceagent.Program}
	pod.InitContainers = append(pod.InitContainers, tools)
	main.VolumeMounts = append(main.VolumeMounts,
		corev1.VolumeMount{Name: editorVolume, MountPath: editorPath, ReadOnly: true})
}

// separated is the command of the container as the agent's arguments. Without a command the agent alone runs: the
// control plane does not know the entrypoint of the image.
func separated(s workspace.Spec) []string {
	command := append(literals(s.Command), literals(s.Args)...)
	if len(command) == 0 {
		return nil
	}
	return append([]string{"--"}, command...)
}

// agentContainer is an init container. Requests of init containers do not add to those of the others.
func (r rendering) agentContainer(
	name string, resources corev1.ResourceRequirements, args []string, mounts ...corev1.VolumeMount,
) corev1.Container {
	return corev1.Container{
		Name: name, Image: r.settings.AgentImage, Args: args, Resources: resources, VolumeMounts: mounts,
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
}

package cli

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func (a *app) templates() *cobra.Command {
	return group("template", "Set and show the templates of workspaces",
		a.templateSet(), a.templateGet(), a.templateList())
}

const templateProject = "project of the template; default: the templates of all projects"

func (a *app) templateSet() *cobra.Command {
	var project string
	spec, editor := &statev1.WorkspaceSpec{}, &statev1.Editor{}
	var o overrides
	c := &cobra.Command{
		Use: "set NAME --image IMAGE", Short: "Create or replace a template", Args: exactly("NAME"),
		Long: `Create a template, or replace all of it. Existing workspaces do not change. Without --project, the template is
for all projects, which only administrators may set. A template of a project is used instead of one for all projects.`,
		Example: "  lockstep template set go --project acme/platform/web --image registry.example/go:1.26 --memory 4Gi",
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			m, err := o.message()
			if err != nil {
				return err
			}
			spec.Image, spec.Cpu, spec.Memory, spec.VolumeSize = m.GetImage(), m.GetCpu(), m.GetMemory(), m.GetVolumeSize()
			spec.Env, spec.Ports, spec.Command, spec.Args = m.GetEnv(), m.GetPorts(), m.GetCommand(), m.GetArgs()
			spec.StopAfterIdle, spec.IdleCountsProcesses = m.GetStopAfterIdle(), m.GetIdleCountsProcesses()
			if editor.GetCommand() != "" || editor.GetPort() != 0 || editor.GetImage() != "" || editor.GetPath() != "" {
				spec.Editor = editor
			}
			names, request := a.names(c.Context(), api), &statev1.PutTemplateRequest{Name: args[0], Spec: spec}
			if request.ProjectId, err = names.projectID(project); err != nil {
				return err
			}
			response, err := api.Templates.PutTemplate(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			return a.print(response.Msg, templateFields(names, response.Msg.GetTemplate()))
		},
	}
	o.specFlags(c)
	c.Flags().StringVar(&editor.Image, "editor-image", "", "image with the tools of the editor; default: that of --image")
	c.Flags().StringVar(&editor.Path, "editor-path", "", "folder of the editor's image that is copied to the workspace")
	c.Flags().StringVar(&editor.Command, "editor-command", "",
		"command line that serves the editor at $EDITOR_PORT; its tools are in $EDITOR_FOLDER")
	c.Flags().Int32Var(&editor.Port, "editor-port", 0, "port of the editor")
	a.projectFlag(c, &project, "project", templateProject)
	return c
}

func (a *app) templateGet() *cobra.Command {
	var project string
	c := &cobra.Command{
		Use: "get NAME", Short: "Show a template", Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			names, request := a.names(c.Context(), api), &statev1.GetTemplateRequest{Name: args[0]}
			if request.ProjectId, err = names.projectID(project); err != nil {
				return err
			}
			response, err := api.Templates.GetTemplate(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			return a.print(response.Msg, templateFields(names, response.Msg.GetTemplate()))
		},
	}
	a.projectFlag(c, &project, "project", templateProject)
	return c
}

func (a *app) templateList() *cobra.Command {
	var project string
	c := &cobra.Command{
		Use: "list", Short: "List the templates of a project and those of all projects, by name", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			names, request := a.names(c.Context(), api), &statev1.ListTemplatesRequest{}
			if request.ProjectId, err = names.projectID(project); err != nil {
				return err
			}
			response, err := api.Templates.ListTemplates(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			t := table{header: []string{"NAME", "PROJECT", "IMAGE", "CPU", "MEMORY", "VOLUME"}}
			for _, one := range response.Msg.GetTemplates() {
				s := one.GetSpec()
				t.rows = append(t.rows, []string{
					one.GetName(), names.projectOrAll(one.GetProjectId()), s.GetImage(), s.GetCpu(), s.GetMemory(), s.GetVolumeSize(),
				})
			}
			return a.print(response.Msg, t)
		},
	}
	a.projectFlag(c, &project, "project", "project of the templates; default: only those of all projects")
	return c
}

func templateFields(names *names, one *statev1.Template) table {
	s := one.GetSpec()
	t := table{header: []string{"FIELD", "VALUE"}, rows: [][]string{
		{"name", one.GetName()},
		{"project", names.projectOrAll(one.GetProjectId())},
		{"image", s.GetImage()},
		{"cpu", s.GetCpu()},
		{"memory", s.GetMemory()},
		{"volume", s.GetVolumeSize()},
	}}
	for _, p := range s.GetPorts() {
		t.rows = append(t.rows, []string{"port " + p.GetName(), strconv.Itoa(int(p.GetNumber()))})
	}
	for _, name := range slices.Sorted(maps.Keys(s.GetEnv())) {
		t.rows = append(t.rows, []string{"env " + name, s.GetEnv()[name]})
	}
	if e := s.GetEditor(); e != nil {
		t.rows = append(t.rows, []string{"editor", e.GetCommand()}, []string{"editor port", strconv.Itoa(int(e.GetPort()))})
		if e.GetImage() != "" {
			t.rows = append(t.rows, []string{"editor image", e.GetImage()}, []string{"editor path", e.GetPath()})
		}
	}
	if len(s.GetCommand()) > 0 {
		t.rows = append(t.rows, []string{"command", strings.Join(s.GetCommand(), " ")})
	}
	if len(s.GetArgs()) > 0 {
		t.rows = append(t.rows, []string{"args", strings.Join(s.GetArgs(), " ")})
	}
	return t
}

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/cgi" //nolint:gosec // G504 is about Go before 1.6.3
	"os"
	"os/exec"
	"path/filepath"

	"lockstep.internal/services/state"
)

// demoProjectPath is where the HTTP server of the demo has the repository.
const demoProjectPath = "/" + demoWorkspace + ".git"

const demoReadme = `# Hello

This project was cloned into your workspace when it was created: its devfile names it.
Work here, in a shell or in the browser. The folder is on the volume of the workspace, so it stays when it stops.
`

// demoProject is a git repository for the workspace of the demo, in a temporary folder.
type demoProject struct {
	dir string
	// backend serves it. It is git's own program.
	backend http.Handler
}

// newDemoProject creates the repository. It returns nil if this machine has no git.
func newDemoProject(ctx context.Context) (_ *demoProject, err error) {
	git, err := exec.LookPath("git")
	if err != nil {
		return nil, nil //nolint:nilnil // it is optional
	}
	dir, err := os.MkdirTemp("", "lockstep-project-")
	if err != nil {
		return nil, fmt.Errorf("create a folder for the project of the demo: %w", err)
	}
	p := &demoProject{dir: dir, backend: &cgi.Handler{
		Path: git, Args: []string{"http-backend"}, Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1"},
	}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	repository := filepath.Join(dir, demoProjectPath)
	if err := os.Mkdir(repository, 0o700); err != nil {
		return nil, fmt.Errorf("create the project of the demo: %w", err)
	}
	if err := os.WriteFile(filepath.Join(repository, "README.md"), []byte(demoReadme), 0o600); err != nil {
		return nil, fmt.Errorf("create the project of the demo: %w", err)
	}
	for _, arguments := range [][]string{
		{"-c", "init.defaultBranch=main", "init", "--quiet"},
		{"add", "README.md"},
		{"-c", "user.name=Lockstep", "-c", "user.email=demo@localhost", "commit", "--quiet", "-m", "Say hello"},
	} {
		command := exec.CommandContext(ctx, git, arguments...) //nolint:gosec // git, with our own arguments
		command.Dir = repository
		command.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1")
		if output, err := command.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("create the project of the demo: git: %w\n%s", err, output)
		}
	}
	return p, nil
}

// close removes the repository.
func (p *demoProject) close() error {
	if p == nil {
		return nil
	}
	if err := os.RemoveAll(p.dir); err != nil {
		return fmt.Errorf("remove the project of the demo: %w", err)
	}
	return nil
}

// demoDevfile describes a workspace with the project. An empty image is that of the template default.
func demoDevfile(image, address string) string {
	return fmt.Sprintf(`schemaVersion: 2.2.0
metadata:
  name: %s
components:
- name: tools
  container:
    image: %s
projects:
- name: %s
  git:
    remotes:
      origin: http://%s%s
`, demoWorkspace, cmp.Or(image, state.DefaultConfig().Workspace.Image), demoWorkspace, address, demoProjectPath)
}

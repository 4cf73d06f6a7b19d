package workspaceagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
)

const (
	// Program is the name of the program, also in its folder.
	Program = "workspace-agent"
	// CloneContainer is the name of the init container that clones the projects.
	CloneContainer = "lockstep-clone"
	// ConfigFile is the path of the configuration, unless the environment variable ConfigVariable has another.
	ConfigFile = "/run/lockstep/workspace.json"
	// ConfigVariable is the environment variable with the path of the configuration.
	ConfigVariable = "LOCKSTEP_WORKSPACE_CONFIG"
	// Port of the SSH server, unless the environment variable ListenVariable has another address.
	Port = 60022
	// RootVariable is the environment variable with a folder that precedes all absolute paths: the configuration, those
	// in it, and the folder of install. It is for agents outside of a container.
	RootVariable = "LOCKSTEP_WORKSPACE_ROOT"
	// Annotation is the annotation of pods with an agent. Its value is the name of the container in which it runs.
	Annotation = "lockstep.dev/workspace-agent"
	// ListenVariable is the environment variable with the address of the SSH server.
	ListenVariable = "LOCKSTEP_WORKSPACE_LISTEN"

	maxPort = 65535

	// MaxConfig is the greatest size of a configuration in bytes.
	MaxConfig = 1 << 20
	// StateFolder is the folder of the agent in the home folder.
	StateFolder = ".lockstep"
)

// Config is what the control plane tells the agent about its workspace. Unknown fields are ignored, since the control
// plane may be newer.
type Config struct {
	// Workspace is the id of the workspace: the only name of a user that SSH accepts.
	Workspace string `json:"workspace"`
	// Authorities are public keys in the format of authorized_keys. A user certificate that one of them has signed for
	// Workspace opens connections. The agent reads them again for each connection, so keys can be rotated. Without any,
	// nobody can connect.
	Authorities []string `json:"authorities,omitempty"`
	// Home is the folder where shells start, on the volume of the workspace: an absolute path. The agent keeps its host
	// key in StateFolder of it.
	Home string `json:"home"`
	// Projects are cloned into Home.
	Projects []Project `json:"projects,omitempty"`
	// Credentials is the folder with the files for remote repositories. Empty for none.
	Credentials string `json:"credentials,omitempty"`
	// PostStart are command lines for the shell. They run one after the other each time that the container starts.
	PostStart []Command `json:"post_start,omitempty"`
	// Commands are offered to people, by their names.
	Commands []Command `json:"commands,omitempty"`
	// Editor runs beside the command of the container. Nil for none.
	Editor *Editor `json:"editor,omitempty"`
}

// Editor is a program that people open in the browser.
type Editor struct {
	// Line is a command line for the shell, which starts in the home folder and serves HTTP at Port. It is started again
	// when it ends. The variables EditorPortVariable and, with tools, EditorFolderVariable are set.
	Line string `json:"line"`
	Port int    `json:"port"`
	// Folder has the tools of the editor; empty if they are in the image of the container.
	Folder string `json:"folder,omitempty"`
}

// Environment variables of editors.
const (
	EditorPortVariable   = "EDITOR_PORT"
	EditorFolderVariable = "EDITOR_FOLDER"
)

// Command is a command line for the shell. It starts in the home folder.
type Command struct {
	Name string `json:"name"`
	Line string `json:"line"`
}

// Parse reads and checks a configuration. The error names every fault.
func Parse(data []byte) (Config, error) {
	var c Config
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("not valid: %w", err)
	}
	return c, c.Validate()
}

// Validate returns all faults.
func (c Config) Validate() error {
	var faults []error
	if c.Workspace == "" {
		faults = append(faults, errors.New("workspace is empty"))
	}
	if !filepath.IsAbs(c.Home) {
		faults = append(faults, fmt.Errorf("home %q is not an absolute path", c.Home))
	}
	for i, p := range c.Projects {
		if err := p.Validate(); err != nil {
			faults = append(faults, fmt.Errorf("projects[%d]: %w", i, err))
		}
	}
	for i, p := range c.PostStart {
		if p.Line == "" {
			faults = append(faults, fmt.Errorf("post_start[%d]: line is empty", i))
		}
	}
	if e := c.Editor; e != nil && (e.Line == "" || e.Port < 1 || e.Port > maxPort) {
		faults = append(faults, errors.New("editor: line is empty, or port is not a port number"))
	}
	for i, p := range c.Commands {
		if p.Name == "" || p.Line == "" {
			faults = append(faults, fmt.Errorf("commands[%d]: name or line is empty", i))
		}
	}
	return errors.Join(faults...)
}

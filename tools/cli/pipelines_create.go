package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
)

const (
	// maxPipelineFile is the size that the service accepts.
	maxPipelineFile = 256 << 10
	defaultFile     = ".gitlab-ci.yml"
	// stdinName stands for standard input: as a flag, and in messages about the file.
	stdinFlag = "-"
	stdinName = "stdin"
)

func (a *app) pipelineCreate() *cobra.Command {
	request := &runnersv1.CreatePipelineRequest{}
	var file, project string
	var variables pipelineVariables
	var follow followFlags
	c := &cobra.Command{
		Use: "create", Short: "Create the jobs of a .gitlab-ci.yml", Args: exactly(),
		Long: `Create the jobs of a .gitlab-ci.yml. The file may use a part of GitLab's keywords: docs/pipelines.md lists
them. If something is wrong with the file, nothing is created, and each problem is one line: FILE:LINE:COLUMN: MESSAGE.

The value of a masked variable comes from the environment of this command, or from a file or standard input. It is
replaced by stars in the output of jobs.

With --wait or --watch, the exit status is 8 if the pipeline fails or is canceled.`,
		Example: `  lockstep pipelines create --project shop/web --ref main --watch
  lockstep pipelines create -f ci/nightly.yml --var LEVEL=full --wait --timeout 1h
  DEPLOY_TOKEN=… lockstep pipelines create --masked-var DEPLOY_TOKEN
  pass show deploy | lockstep pipelines create --masked-var DEPLOY_TOKEN=-`,
		RunE: func(c *cobra.Command, _ []string) error {
			err := follow.check(c)
			if err != nil {
				return err
			}
			if file == stdinFlag && variables.readsStdin() {
				return fault.New(errcode.InvalidArgument,
					"standard input cannot be both the file and a masked variable: use a file for one of them")
			}
			api, names, err := a.runnersAndNames(c.Context())
			if err != nil {
				return err
			}
			if request.File, err = readPipelineFile(c, file); err != nil {
				return err
			}
			if request.FileName = file; file == stdinFlag {
				request.FileName = stdinName
			}
			if request.Variables, err = variables.message(c.InOrStdin()); err != nil {
				return err
			}
			if request.ProjectId, err = names.projectOrOnly(project); err != nil {
				return err
			}
			response, err := api.Pipelines.CreatePipeline(c.Context(), connect.NewRequest(request))
			if err != nil {
				return a.explainFile(request.GetFileName(), err)
			}
			return a.printPipeline(c.Context(), api, names, follow, response.Msg, response.Msg.GetPipeline())
		},
	}
	f := c.Flags()
	f.StringVarP(&file, "file", "f", defaultFile, "file with the jobs, - for standard input")
	_ = c.MarkFlagFilename("file", "yml", "yaml")
	a.projectFlag(c, &project, "project", "project of the pipeline; default: the only one that you can see")
	f.StringVar(&request.Ref, "ref", "", "name of a branch or tag, which rules read as $CI_COMMIT_REF_NAME")
	f.BoolVar(&request.Protected, "protected", false, "let the jobs use protected runners (maintainers only)")
	f.StringVar(&request.RequestId, "idempotency-key", "",
		"key that makes a repeated command return the first pipeline")
	variables.flags(c)
	follow.flags(c)
	return c
}

// readPipelineFile reads a file up to the size that the service accepts.
func readPipelineFile(c *cobra.Command, name string) ([]byte, error) {
	from := c.InOrStdin()
	if name != stdinFlag {
		file, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) && name == defaultFile && !c.Flags().Changed("file") {
			return nil, fault.New(errcode.InvalidArgument, "there is no %s in this folder: name another file with -f",
				defaultFile)
		}
		if err != nil {
			return nil, fault.Wrap(err, errcode.InvalidArgument, "read the file: %v", err)
		}
		defer file.Close() //nolint:errcheck // it was read only
		from = file
	}
	raw, err := io.ReadAll(io.LimitReader(from, maxPipelineFile+1))
	if err != nil {
		return nil, fault.Wrap(err, errcode.InvalidArgument, "read the file: %v", err)
	}
	if len(raw) > maxPipelineFile {
		return nil, fault.New(errcode.InvalidArgument, "the file has more than 256 KiB")
	}
	return raw, nil
}

// explainFile prints the problems of a file, one line each. Other errors are returned as they are.
func (a *app) explainFile(name string, err error) error {
	f := fault.From(err)
	problems := fileProblems(name, f.Message)
	if f.Code != errcode.InvalidArgument || len(problems) == 0 {
		return err
	}
	if err := a.note("%s", strings.Join(problems, "\n")); err != nil {
		return err
	}
	return fault.New(errcode.InvalidArgument, "the file is not valid, nothing was created")
}

// fileProblems returns the lines of a message, each from the name of the file on; nil if it has other lines, too.
func fileProblems(name, message string) []string {
	var problems []string
	for line := range strings.Lines(message) {
		_, problem, found := strings.Cut(line, name+":")
		if !found {
			return nil
		}
		problems = append(problems, name+":"+strings.TrimRight(problem, "\n"))
	}
	return problems
}

// pipelineVariables are the flags for variables.
type pipelineVariables struct{ plain, masked []string }

func (v *pipelineVariables) flags(c *cobra.Command) {
	c.Flags().StringArrayVar(&v.plain, "var", nil, "variable of all jobs as NAME=VALUE; can be repeated")
	c.Flags().StringArrayVar(&v.masked, "masked-var", nil,
		"masked variable as NAME with the value from the environment, or as NAME=FILE with the value from a file, - for "+
			"standard input; at least 8 bytes; can be repeated")
}

func (v *pipelineVariables) readsStdin() bool {
	for _, one := range v.masked {
		if strings.HasSuffix(one, "="+stdinFlag) {
			return true
		}
	}
	return false
}

func (v *pipelineVariables) message(stdin io.Reader) ([]*runnersv1.Variable, error) {
	var out []*runnersv1.Variable
	for _, one := range v.plain {
		key, value, found := strings.Cut(one, "=")
		if !found || key == "" {
			return nil, fault.New(errcode.InvalidArgument, "--var %q must be NAME=VALUE", one)
		}
		out = append(out, &runnersv1.Variable{Key: key, Value: value})
	}
	stdinRead := false
	for _, one := range v.masked {
		key, file, fromFile := strings.Cut(one, "=")
		if key == "" {
			return nil, fault.New(errcode.InvalidArgument, "--masked-var %q must be NAME or NAME=FILE", one)
		}
		if file == stdinFlag && stdinRead {
			return nil, fault.New(errcode.InvalidArgument, "--masked-var: only one variable can come from standard input")
		}
		stdinRead = stdinRead || file == stdinFlag
		value, err := maskedValue(key, file, fromFile, stdin)
		if err != nil {
			return nil, err
		}
		out = append(out, &runnersv1.Variable{Key: key, Value: value, Masked: true, Raw: true})
	}
	return out, nil
}

func maskedValue(key, file string, fromFile bool, stdin io.Reader) (string, error) {
	switch {
	case !fromFile:
		value, set := os.LookupEnv(key)
		if !set {
			return "", fault.New(errcode.InvalidArgument,
				"--masked-var %s: the environment has no variable %s: set it, or use %s=FILE", key, key, key)
		}
		return value, nil
	case file == stdinFlag:
		raw, err := io.ReadAll(io.LimitReader(stdin, maxPipelineFile))
		if err != nil {
			return "", fault.Wrap(err, errcode.InvalidArgument, "--masked-var %s: read standard input: %v", key, err)
		}
		return string(bytes.TrimRight(raw, "\r\n")), nil
	default:
		value, err := config.SecretFile(file).Read()
		if err != nil {
			return "", fault.Wrap(err, errcode.InvalidArgument, "--masked-var %s: %v", key, err)
		}
		return value, nil
	}
}

package lab

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	stdlog "log"
	"os"

	"k8s.io/klog/v2"
)

// tailLines is the number of log lines in an error.
const tailLines = 15

// openLog sets path as the log of the components. The log of the previous run is renamed.
func openLog(path string) (*os.File, error) {
	if err := os.Rename(path, path+".old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("rename the old log: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	for name, value := range map[string]string{
		"logtostderr": "false", "alsologtostderr": "false", "stderrthreshold": "FATAL", "one_output": "true", "v": "1",
	} {
		if err := flags.Set(name, value); err != nil {
			return nil, errors.Join(fmt.Errorf("set the log flag %s: %w", name, err), f.Close())
		}
	}
	klog.SetOutput(f)
	stdlog.SetOutput(f)
	return f, nil
}

// withTail adds the end of the log and its path to an error.
func withTail(err error, path string, kept bool) error {
	content, readErr := os.ReadFile(path)
	if readErr != nil {
		return err
	}
	where := "the log is removed with the lab; keep it with --data"
	if kept {
		where = "the whole log: " + path
	}
	return fmt.Errorf("%w\n\nthe log ends with:\n%s\n\n%s", err, tail(string(content), tailLines), where)
}

// Package address maps host names to ports of workspaces: https://<port>--<workspace>.<zone>. It is pure.
package address

#!/usr/bin/env bash
# Puts quic_lb.h into the sources of nginx at DIR, and calls it in the two places where nginx makes a connection id: for connections, and for Retry. Run with nginx 1.31.5.
#
#   ./apply.sh DIR && cd DIR && auto/configure --with-http_v3_module … && make
set -euo pipefail
quic=${1:?usage: apply.sh DIR}/src/event/quic
here=$(dirname "$0")
# once FILE OLD NEW: replaces a line's part that must be there exactly once.
once() {
	[ "$(grep -c -F "$2" "$quic/$1")" = 1 ] || { echo "apply: $1: not once there: $2" >&2; exit 1; }
	OLD=$2 NEW=$3 perl -0pi -e 's/\Q$ENV{OLD}\E/$ENV{NEW}/' "$quic/$1"
}
! grep -q quic_lb "$quic/ngx_event_quic_connid.c" || { echo "apply: it is applied already" >&2; exit 1; }
once ngx_event_quic_connid.c 'if (RAND_bytes(id, NGX_QUIC_SERVER_CID_LEN) != 1) {' \
	'ngx_int_t  lb = quic_lb_id(c->log, id);

    if (lb != NGX_DECLINED) {
        return lb;
    }

    if (RAND_bytes(id, NGX_QUIC_SERVER_CID_LEN) != 1) {'
once ngx_event_quic_output.c 'if (RAND_bytes(dcid, NGX_QUIC_SERVER_CID_LEN) != 1) {' \
	'if (quic_lb_id(c->log, dcid) != NGX_OK && RAND_bytes(dcid, NGX_QUIC_SERVER_CID_LEN) != 1) {'
once ngx_event_quic_connid.c '#include <ngx_event_quic_connection.h>' $'#include <ngx_event_quic_connection.h>\n#include "quic_lb.h"'
once ngx_event_quic_connid.h 'ngx_int_t ngx_quic_create_sockets(ngx_connection_t *c);' \
	$'ngx_int_t quic_lb_id(ngx_log_t *log, u_char *id);\nngx_int_t ngx_quic_create_sockets(ngx_connection_t *c);'
cp "$here/quic_lb.h" "$quic/"

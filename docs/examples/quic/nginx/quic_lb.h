/* Connection ids of nginx by which Shunt finds the server again: draft-ietf-quic-load-balancers-21 sections 5.3 and 5.4.1, with a server id of 3 bytes and a nonce of 13.
 * apply.sh puts it into the sources of nginx, where ngx_event_quic_connid.c includes it. */
#ifndef SHUNT_QUIC_LB_H
#define SHUNT_QUIC_LB_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>
#include <openssl/rand.h>

enum {
	QUIC_LB_SERVER_ID = 3,
	QUIC_LB_BLOCK = 16,    /* server id and nonce: one block of AES behind the first octet */
	QUIC_LB_MAX_CONFIG = 6, /* 7 is for ids that route nowhere (section 3.2) */
};

struct quic_lb {
	unsigned config;
	u_char server_id[QUIC_LB_SERVER_ID];
	u_char key[QUIC_LB_BLOCK];
	int known;
};

/* quic_lb_hex reads exactly `len` bytes of hexadecimal digits. */
static int quic_lb_hex(u_char *to, const char *text, size_t len)
{
	if (text == NULL || strlen(text) != 2 * len)
		return 0;
	for (size_t i = 0; i < len; i++) {
		ngx_int_t byte = ngx_hextoi((u_char *)text + 2 * i, 2);

		if (byte == NGX_ERROR)
			return 0;
		to[i] = (u_char)byte;
	}
	return 1;
}

/* quic_lb_parse reads a line "CONFIG KEY SERVERID", the latter two in hexadecimal digits. */
static int quic_lb_parse(struct quic_lb *lb, char *line)
{
	char *rest, *key, *server_id;

	memset(lb, 0, sizeof(*lb));
	lb->config = strtoul(line, &rest, 10);
	if (rest == line || lb->config > QUIC_LB_MAX_CONFIG)
		return 0;
	key = strtok(rest, " \r\n");
	server_id = key ? strtok(NULL, " \r\n") : NULL;
	lb->known = quic_lb_hex(lb->key, key, sizeof(lb->key)) && quic_lb_hex(lb->server_id, server_id, sizeof(lb->server_id));
	return lb->known;
}

/* quic_lb_config is what the file says that the environment variable NGX_QUIC_LB names. It is read again when it has changed, looked at once a second at most. What cannot
 * be read leaves things as they are; until something was read nothing is known. */
static const struct quic_lb *quic_lb_config(ngx_log_t *log)
{
	static struct quic_lb lb;
	static time_t looked, changed, taken;
	const char *path = getenv("NGX_QUIC_LB");
	char line[128] = "";
	ngx_file_info_t info;
	struct quic_lb next;
	FILE *file;

	if (path == NULL || looked == ngx_time())
		return &lb;
	looked = ngx_time();
	if (ngx_file_info(path, &info) == NGX_FILE_ERROR) {
		ngx_log_error(NGX_LOG_ERR, log, ngx_errno, "quic lb: \"%s\"", path);
		return &lb;
	}
	/* A file that changed in the second in which it was read may have changed again. */
	if (changed == ngx_file_mtime(&info) && changed < taken)
		return &lb;
	taken = looked;
	file = fopen(path, "r");
	if (file != NULL && fgets(line, sizeof(line), file) == NULL)
		line[0] = '\0';
	if (file != NULL)
		fclose(file);
	changed = ngx_file_mtime(&info);
	if (!quic_lb_parse(&next, line)) {
		ngx_log_error(NGX_LOG_ERR, log, 0, "quic lb: \"%s\" must begin with a line of a config id, 0 to %d, a key of %d bytes and a server id of %d", path,
			      QUIC_LB_MAX_CONFIG, QUIC_LB_BLOCK, QUIC_LB_SERVER_ID);
		return &lb;
	}
	lb = next;
	ngx_log_error(NGX_LOG_NOTICE, log, 0, "quic lb: connection ids under config %ui", (ngx_uint_t)lb.config);
	return &lb;
}

/* quic_lb_id makes a connection id of NGX_QUIC_SERVER_CID_LEN bytes: the balancer reads the first 17, the others are random, as the nonce is. NGX_DECLINED: nothing is
 * configured, and the id is nginx's to make. */
ngx_int_t quic_lb_id(ngx_log_t *log, u_char *id)
{
	const struct quic_lb *lb = quic_lb_config(log);
	EVP_CIPHER_CTX *ctx;
	int len, ok;

	if (!lb->known)
		return NGX_DECLINED;
	if (RAND_bytes(id, NGX_QUIC_SERVER_CID_LEN) != 1)
		return NGX_ERROR;
	id[0] = (u_char)(lb->config << 5 | (id[0] & 0x1f));
	memcpy(&id[1], lb->server_id, QUIC_LB_SERVER_ID);
	ctx = EVP_CIPHER_CTX_new();
	if (ctx == NULL)
		return NGX_ERROR;
	ok = EVP_EncryptInit_ex(ctx, EVP_aes_128_ecb(), NULL, lb->key, NULL) == 1 && EVP_CIPHER_CTX_set_padding(ctx, 0) == 1 &&
	     EVP_EncryptUpdate(ctx, &id[1], &len, &id[1], QUIC_LB_BLOCK) == 1;
	EVP_CIPHER_CTX_free(ctx);
	return ok ? NGX_OK : NGX_ERROR;
}

#endif
